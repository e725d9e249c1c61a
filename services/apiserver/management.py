"""What both edges do with a verb: ask whether the caller may, find the pods, ask them, audit it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from libs import audit
from libs.cluster import Access, Bearer, Cluster, UnauthorisedError
from libs.cluster.kinds import POD
from libs.contract import checks
from libs.contract.agent import Condition
from libs.errors import DeadlineError, DeniedError, InternalError, MeshError, PreconditionError
from libs.places import Places

from .agents import Dial, brief
from .exits import following
from .fanout import FanOut, condition_of
from .metrics import FAN_OUT_SECONDS, VERBS
from .pods import Pod, find, is_as_found
from .verbs import STATUS, Order, Outcome, Report, Stage, Target, Verb, counted

AT_ONCE = 128
SHARE = 32  # of these, for one caller
_STATUS_SECONDS = 5.0  # for an agent to say what it is doing
_ENDING = (Verb.DRAIN, Verb.CANCEL)
"""What still makes sense for a pod whose deletion has begun."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What one pod of a target is doing."""

    pod: str
    pod_uid: str
    phase: str
    """Pending, Running, Succeeded or Failed."""
    condition: Condition | None = None
    """What the agent says; None if it could not be asked."""
    error: str = ""
    """Why not."""


class Note:
    """What an audit line will say of a call."""

    def __init__(self) -> None:
        self.decision: audit.Decision = "denied"
        self.outcome = "failed"
        self.counts = ""


class Management:
    """The verbs on the agents of `cluster`, each of which `dial` reaches. It keeps nothing. Who asks it takes
    one of its `places` first, by username, on whatever way it comes."""

    def __init__(self, cluster: Cluster, dial: Dial, places: Places | None = None) -> None:
        self.places = places or Places(AT_ONCE, SHARE)
        self._cluster = cluster
        self._dial = dial

    async def act(self, bearer: Bearer, order: Order, *, within: float = float("inf")) -> Report:
        """Does it, and says what became of it at each pod. `within` is how many seconds the caller waits,
        which may be less than the order's deadline.

        InvalidError; DeniedError; NotFoundError without such an object, pod or run; PreconditionError if no
        pod of it runs; DeadlineError if time was up before any pod was asked.
        """
        with audited(bearer, order.verb, order.target, _what(order), order.reason) as note:
            order.check()
            checks.run_id(order.run_id, may_be_empty=True)
            ends_at = _now() + min(order.deadline.total_seconds(), within)
            pods = await self._admitted(bearer, order.target, order.target.access(order.verb), ends_at, note)
            asked = [pod for pod in pods if pod.runs and (order.verb in _ENDING or not pod.is_going)]
            if not asked:
                raise PreconditionError(_nobody(order.target, pods))
            report = Report(await self._fan_out(order, asked, ends_at), order.until)
            note.outcome, note.counts = report.word, report.count
            return report

    async def status(
        self, bearer: Bearer, target: Target, *, within: float = float("inf")
    ) -> Sequence[PodStatus]:
        """What the target's pods are doing, by name, also those that do not run. InvalidError; DeniedError;
        NotFoundError; DeadlineError."""
        ends_at = _now() + min(_STATUS_SECONDS, within)
        with audited(bearer, STATUS, target, STATUS) as note:
            target.check()
            pods = await self._admitted(bearer, target, target.access(STATUS, "get"), ends_at, note)
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._status(pod, ends_at)) for pod in pods]
            note.outcome, note.counts = "done", counted(len(pods), "pod")
            return [each.result() for each in asked]

    async def _admitted(
        self, bearer: Bearer, target: Target, access: Access, ends_at: float, note: Note
    ) -> list[Pod]:
        """The target's pods, for who may do that to it."""
        try:
            async with asyncio.timeout_at(ends_at):
                if not await self._cluster.review_access(bearer, access):
                    raise DeniedError(_refusal(bearer, access))
                note.decision = "allowed"
                return await find(self._cluster, target)
        except TimeoutError:
            raise DeadlineError("the cluster did not answer in time") from None
        except UnauthorisedError as error:
            raise InternalError(f"the apiserver itself lacks a right in the cluster: {error}") from error

    async def _fan_out(self, order: Order, pods: Sequence[Pod], ends_at: float) -> list[Outcome]:
        async with AsyncExitStack() as stack:
            exits = None
            if order.verb is Verb.DRAIN and order.until is Stage.FINISHED and not order.dry_run:
                exits = await stack.enter_async_context(following(self._cluster, order.target, pods, ends_at))
            with FAN_OUT_SECONDS.labels(order.verb).time():
                return await FanOut(order, self._dial, ends_at, self._is_as_found, exits).run(pods)

    async def _is_as_found(self, pod: Pod) -> bool:
        listing = await self._cluster.list(POD, pod.namespace, name=pod.name)
        return any(is_as_found(pod, thing) for thing in listing.items)

    async def _status(self, pod: Pod, ends_at: float) -> PodStatus:
        if not pod.runs:
            return PodStatus(pod.name, pod.uid, pod.phase, error="it does not run")
        error = "it did not answer in time"
        try:
            async with self._dial(pod) as agent:
                condition = await condition_of(agent, max(ends_at - _now(), 0.001))
                return PodStatus(pod.name, pod.uid, pod.phase, condition)
        except DeadlineError:
            pass
        except MeshError as refused:
            error = brief(refused)
        return PodStatus(pod.name, pod.uid, pod.phase, error=error)


@contextmanager
def audited(bearer: Bearer, verb: str, target: Target, what: str, reason: str = "") -> Iterator[Note]:
    """One line and one count of a call, however it ends."""
    note = Note()
    try:
        yield note
    except MeshError as error:
        note.outcome = error.reason.lower()
        raise
    except asyncio.CancelledError:
        note.outcome = "interrupted"
        raise
    finally:
        VERBS.labels(verb, target.kind, note.outcome).inc()
        audit.record(
            f"management.{verb}",
            who=bearer.username,
            what=what,
            target=str(target),
            decision=note.decision,
            outcome=f"{note.outcome}: {note.counts}" if note.counts else note.outcome,
            reason=reason,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _what(order: Order) -> str:
    words = [str(order.verb)]
    if order.undo:
        words.append("undo")
    if order.run_id:
        words.append(f"run {order.run_id}")
    if order.dry_run:
        words.append("dry run")
    return " ".join(words)


def _nobody(target: Target, pods: Sequence[Pod]) -> str:
    nobody = f"{target} has no pod that runs"
    if pods and all(pod.phase in ("Succeeded", "Failed") for pod in pods):
        return f"{nobody}: all have ended ({counted(len(pods), 'pod')})"
    pending = sum(pod.phase == "Pending" for pod in pods)
    return f"{nobody}; {pending} pending, {len(pods)} in all"


def _refusal(bearer: Bearer, access: Access) -> str:
    """As Kubernetes words it."""
    resource = f"{access.resource}/{access.subresource}"
    return (
        f'{access.resource}.{access.group} "{access.name}" is forbidden: User "{bearer.username}" cannot '
        f'{access.verb} resource "{resource}" in API group "{access.group}" '
        f'in the namespace "{access.namespace}"'
    )
