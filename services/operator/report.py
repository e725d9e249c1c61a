"""What an agent says of its run at its end: the report of contract 1.0, as the pod's status has it.

It is the text of a program that is not ours: what is no report counts as none, and all of it is bounded.
"""

from __future__ import annotations

import re

from libs.cluster import Object
from libs.contract.report import Report, parse

from .plan.agentd import BRIDGE
from .plan.template import CONTAINER

_MOST_LETTERS = 4096  # as many bytes are kept at most
_MOST_WORDS = 1024
_MOST = 2**53
_WORD = re.compile("[a-z][a-z0-9_]{0,62}")
_SPEAKERS = (CONTAINER, BRIDGE)


def report_of(pod: Object) -> Report | None:
    """What the agent in the pod has said at its end, or the bridge for it; None if it was no report."""
    said = pod.get("status") or {}
    found = [*(said.get("containerStatuses") or ()), *(said.get("initContainerStatuses") or ())]
    for speaker in _SPEAKERS:
        for container in (each for each in found if each["name"] == speaker):
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                if report := _read((state.get("terminated") or {}).get("message") or ""):
                    return report
    return None


def words_of(report: Report) -> str:
    """Why the run ended, for people: one line of printable text."""
    text = "".join(letter if letter.isprintable() else " " for letter in report.error)
    return " ".join(text.split())[:_MOST_WORDS]


def _read(text: str) -> Report | None:
    report = parse(text) if len(text) <= _MOST_LETTERS else None
    if report is None or not _WORD.fullmatch(report.status):
        return None
    used = report.usage.input_tokens, report.usage.output_tokens, report.usage.steps
    return report if all(0 <= count <= _MOST for count in used) else None
