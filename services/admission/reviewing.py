"""One review from the question to the verdict, whatever surface asked: looked up, judged, counted, logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Counter, Histogram

from libs import audit
from libs.cluster import Bearer, Object
from libs.errors import ExhaustedError, MeshError
from libs.findings import shortened

from . import reading, schema, trifecta
from .context import needs
from .defaults import patch
from .gathering import Gatherer
from .rules import review
from .verdict import Finding, Operation, Verdict

Surface = Literal["validate", "mutate", "grpc"]

REVIEWS = Counter(
    "agentctl_admission_reviews",
    "Reviews by surface and verdict, or why there is none.",
    ("surface", "verdict"),
)
SECONDS = Histogram(
    "agentctl_admission_review_duration_seconds",
    "How long reviews took.",
    ("surface",),
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
DENIALS = Counter("agentctl_admission_denials", "Denied objects by each rule that denied them.", ("rule",))

LONGEST_SECONDS = 10.0
"""That a review may take, whatever time its caller has."""
MARGIN_SECONDS = 0.3
"""Of the caller's time that is left for the answer's way back."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """May this be declared?"""

    surface: Surface
    thing: Object
    old: Object | None
    """As it was; None: it is to be created."""
    author: Bearer
    within: float
    """Seconds."""
    dry_run: bool = False


class Reviewer:
    """Answers questions, so many at once."""

    def __init__(
        self, gatherer: Gatherer, *, at_once: int = 64, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gatherer = gatherer
        self._at_once = at_once
        self._clock = clock
        self._underway = 0

    async def review(self, question: Question) -> Verdict:
        """The verdict. What no API server has seen is held against its schema, too. ExhaustedError beyond the
        cap; InvalidError for what names too much; UnavailableError if something could not be looked up."""
        with self._counted(question.surface):
            if self._underway >= self._at_once:
                raise ExhaustedError("too many reviews at once: try again")
            self._underway += 1
            try:
                return await self._review(question)
            finally:
                self._underway -= 1

    def defaulted(self, thing: Object) -> Sequence[Operation]:
        """What the mutating webhook fills in."""
        with self._counted("mutate"):
            found = patch(thing) if reading.is_readable(thing) else ()
        REVIEWS.labels("mutate", "allowed").inc()
        return found

    async def _review(self, question: Question) -> Verdict:
        thing, old = question.thing, question.old
        found = schema.check(thing, old) if question.surface == "grpc" else None
        facts = await self._gatherer.gather(
            needs(thing, old), question.author, within=question.within, schema=found
        )
        verdict = review(thing, old, facts)
        _tell(question, verdict)
        return verdict

    @contextmanager
    def _counted(self, surface: Surface) -> Iterator[None]:
        begun = self._clock()
        try:
            yield
        except MeshError as error:
            REVIEWS.labels(surface, error.reason.lower()).inc()
            _log.warning("no verdict: %s", error, extra={"surface": surface, "verdict": error.reason.lower()})
            raise
        finally:
            SECONDS.labels(surface).observe(self._clock() - begun)


def _tell(question: Question, verdict: Verdict) -> None:
    word = "allowed" if verdict.allowed else "denied"
    REVIEWS.labels(question.surface, word).inc()
    rules = _rules(verdict.denials)
    for rule in rules:
        DENIALS.labels(rule).inc()
    target = target_of(question.thing)
    what = "create" if question.old is None else "update"
    who = shortened(question.author.username)
    outcome = "dry run" if question.dry_run else ""
    is_claimed = question.surface == "validate"  # the author is who an unproven peer says
    _log.info(
        "%s %s by %s: %s",
        what,
        target,
        who,
        word,
        extra={
            "surface": question.surface,
            "verdict": word,
            "rules": rules,
            "warnings": _rules(verdict.warnings),
            "who": who,
            "object": target,
            "dry_run": question.dry_run,
        },
    )
    if not verdict.allowed:
        audit.record(
            "admission-denial", who=who, what=what, target=target, decision="denied", outcome=outcome,
            reason=", ".join(rules), is_claimed=is_claimed,
        )  # fmt: skip
    elif any(each.rule == trifecta.OVERRIDDEN for each in verdict.warnings):
        audit.record(
            "admission-override", who=who, what=what, target=target, decision="allowed", outcome=outcome,
            reason=shortened(reading.reason(question.thing)), is_claimed=is_claimed,
        )  # fmt: skip


def target_of(thing: Object) -> str:
    """namespace/kind/name of what may be malformed."""
    name = reading.text(thing, "name") or reading.text(thing, "generateName")
    parts = (reading.text(thing, "namespace"), thing.get("kind"), name)
    return "/".join(shortened(each) if each and isinstance(each, str) else "-" for each in parts)


def _rules(findings: Sequence[Finding]) -> list[str]:
    return sorted({each.rule for each in findings})
