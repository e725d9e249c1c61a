"""The lethal trifecta: who reads untrusted input and sensitive data, and can send data out, may be talked
into doing so. An agent with all three needs an override: a reason, by somebody who may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from libs.cluster.kinds import MCP_SERVER_SET
from libs.findings import shortened
from libs.resources.agent import AgentSpec
from libs.resources.pool import EGRESS, SENSITIVE, TRIFECTA, UNTRUSTED_INPUT

from . import reading
from .context import Case, override
from .verdict import Finding

RULE, OVERRIDDEN, UNCHECKED = "trifecta", "trifecta-overridden", "trifecta-unchecked"

_WHERE = f"metadata.annotations[{reading.OVERRIDE}]"


def denials(case: Case) -> Iterator[Finding]:
    """Agents with all three legs and no override."""
    right = f"override {case.kind.plural}/trifecta in {case.kind.group}"
    reason = reading.reason(case.thing)
    for at, legs in _lethal(case).items():
        if not reason:
            yield Finding(
                RULE,
                at,
                "",
                f"it has untrusted input ({legs[UNTRUSTED_INPUT]}), sensitive data ({legs[SENSITIVE]}) and "
                f"egress ({legs[EGRESS]}): together they let a stranger's text send data out",
                f"take one of them away, or give the reason in the annotation {reading.OVERRIDE}, "
                f"as somebody who may {right}",
            )
        elif not case.facts.is_offline and override(case) not in case.facts.granted:
            yield Finding(
                RULE,
                _WHERE,
                shortened(reason),
                f"{at} has all three of {', '.join(TRIFECTA)}, and its author may not {right}",
                "take one of them away, or let somebody apply it who has that right",
            )


def warnings(case: Case) -> Iterator[Finding]:
    """Overrides that count, or that nobody could be asked about."""
    reason = reading.reason(case.thing)
    for at in _lethal(case) if reason else ():
        message = f"{at} may leak data to strangers: it has all three of {', '.join(TRIFECTA)}"
        if override(case) in case.facts.granted:
            yield Finding(OVERRIDDEN, _WHERE, shortened(reason), message, "take one away once it can be done")
        elif case.facts.is_offline:
            mend = f"see to it that its author may override {case.kind.plural}/trifecta"
            yield Finding(UNCHECKED, _WHERE, shortened(reason), message, mend)


def _lethal(case: Case) -> dict[str, Mapping[str, str]]:
    """Where all three legs are, with where each comes from."""
    found = {at: _legs(case, at, part) for at, part in case.parts.items()}
    return {at: legs for at, legs in found.items() if len(legs) == len(TRIFECTA)}


def _legs(case: Case, at: str, part: reading.Part) -> Mapping[str, str]:
    legs: dict[str, str] = {}
    if isinstance(part, AgentSpec) and part.mode == "reactive":
        legs[UNTRUSTED_INPUT] = "mode reactive"
    for _, name in reading.secrets(at, part):
        legs.setdefault(SENSITIVE, f"Secret {shortened(name)}")
    for name in part.mcp_servers:
        for server in reading.servers(case.facts.objects.get((MCP_SERVER_SET, name), {})):
            for tag in TRIFECTA:
                if tag in server.tags:
                    legs.setdefault(tag, f"server {server.name} of {name}")
    return legs
