"""The verbs, whom they mean, and what becomes of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import Literal, TypeAlias

from libs.cluster import Access
from libs.contract.run import Run
from libs.errors import InvalidError

GROUP = "management.agentctl.dev"
STATUS = "status"
"""The subresource that is read."""
DEFAULT_DEADLINE = timedelta(seconds=30)
SHORTEST_DEADLINE, LONGEST_DEADLINE = timedelta(seconds=1), timedelta(hours=1)
MAX_REASON_BYTES = 1024
MAX_NAME = 253  # letters, of any name in Kubernetes


class Verb(StrEnum):
    """The value is the subresource of kubectl and RBAC."""

    DRAIN = "drain"
    LAME_DUCK = "lame-duck"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"

    @property
    def rpc(self) -> str:
        """As manifests and services name it."""
        return self.title().replace("-", "")


class Kind(StrEnum):
    """What a target is. The value is the resource of kubectl and RBAC."""

    AGENT = "agents"
    FLEET = "agentfleets"


class Stage(IntEnum):
    """How far a verb has come at one pod; the numbers are the wire's."""

    FAILED = 1
    WOULD = 2
    ACCEPTED = 3
    IN_EFFECT = 4
    FINISHED = 5


Until: TypeAlias = Literal["accepted", "in-effect", "finished"]
"""A stage to wait for, as documents say it."""


@dataclass(frozen=True, slots=True)
class Target:
    """An agent or a fleet, or one pod of it."""

    kind: Kind
    namespace: str
    name: str
    pod: str = ""

    def __str__(self) -> str:
        pod = f" pod {self.pod}" if self.pod else ""
        return f"{self.namespace}/{self.kind}/{self.name}{pod}"

    def access(self, subresource: str, verb: str = "create") -> Access:
        """What a SubjectAccessReview asks of who wants it."""
        return Access(verb, GROUP, self.kind, self.namespace, self.name, subresource)

    def check(self) -> None:
        """InvalidError names what is wrong."""
        if wrong := self.violations():
            raise InvalidError(violations=wrong)

    def violations(self) -> dict[str, str]:
        """What is wrong, by field."""
        names = {"namespace": self.namespace, "name": self.name, "pod": self.pod}
        wrong = {
            field: f"at most {MAX_NAME} letters" for field, name in names.items() if len(name) > MAX_NAME
        }
        return wrong | {field: "is required" for field in ("namespace", "name") if not names[field]}


@dataclass(frozen=True, slots=True)
class Order:
    """A verb, for whom, and how."""

    verb: Verb
    target: Target
    reason: str = ""
    dry_run: bool = False
    until: Stage = Stage.ACCEPTED
    deadline: timedelta = DEFAULT_DEADLINE
    run_id: str = ""
    """Of cancel, pause and resume."""
    undo: bool = False
    """Of lame-duck."""
    grace: timedelta | None = None
    """Of drain."""

    def check(self) -> None:
        """InvalidError names what is wrong."""
        wrong = self.target.violations()
        if len(self.reason.encode()) > MAX_REASON_BYTES:
            wrong["reason"] = f"at most {MAX_REASON_BYTES} bytes"
        if self.until < Stage.ACCEPTED:
            wrong["until"] = "accepted, in effect or finished"
        if not SHORTEST_DEADLINE <= self.deadline <= LONGEST_DEADLINE:
            wrong["deadline"] = "1 second to 1 hour"
        if self.run_id and self.verb not in (Verb.CANCEL, Verb.PAUSE, Verb.RESUME):
            wrong["run_id"] = f"{self.verb} means whole agents"
        if self.undo and self.verb is not Verb.LAME_DUCK:
            wrong["undo"] = f"{self.verb} cannot be undone by itself"
        if self.grace is not None and (self.verb is not Verb.DRAIN or self.grace < timedelta(0)):
            wrong["grace"] = "of drain only, and not negative"
        if wrong:
            raise InvalidError(violations=wrong)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it at one pod."""

    pod: str
    pod_uid: str
    stage: Stage
    reason: str = ""
    """Of a failure, for programs: an error's reason."""
    message: str = ""
    run_count: int = 0
    runs: Sequence[Run] = field(default=())


@dataclass(frozen=True, slots=True)
class Report:
    """What became of it at each pod, by name."""

    outcomes: Sequence[Outcome]
    until: Stage

    @property
    def missing(self) -> Sequence[Outcome]:
        """Those who did not come as far as was asked. Of a dry run, who would not be asked."""
        return [each for each in self.outcomes if each.stage is not Stage.WOULD and each.stage < self.until]

    @property
    def done(self) -> int:
        """How many came as far as was asked. Of a dry run, how many would be asked."""
        return len(self.outcomes) - len(self.missing)

    @property
    def is_done(self) -> bool:
        """Whether all of them did."""
        return self.done == len(self.outcomes)

    @property
    def word(self) -> str:
        """All of it in a word: done, partial, late if none came so far and not all have failed, or failed."""
        if self.is_done:
            return "done"
        if self.done:
            return "partial"
        return "failed" if all(each.stage is Stage.FAILED for each in self.outcomes) else "late"

    @property
    def count(self) -> str:
        """As `1 of 2 pods`."""
        return f"{self.done} of {counted(len(self.outcomes), 'pod')}"


def counted(count: int, noun: str) -> str:
    """As `1 run`, `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
