"""Whether an agent can do what it is for, from its workload and its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libs.cluster import Object
from libs.exits import intent
from libs.resources.agent import AgentSpec
from libs.resources.status import Run

from .plan.owned import TEMPLATE_HASH
from .plan.template import CONTAINER
from .runs import code_of, exit_code

_STUCK = {
    "ErrImagePull": "ImagePullBackOff",  # the two take turns
    "ImagePullBackOff": "ImagePullBackOff",
    "ErrImageNeverPull": "ErrImageNeverPull",
    "InvalidImageName": "InvalidImageName",
    "CreateContainerConfigError": "CreateContainerConfigError",
    "CreateContainerError": "CreateContainerError",
    "RunContainerError": "RunContainerError",
    "CrashLoopBackOff": "CrashLoopBackOff",
    "Unsupported": "Unsupported",  # this and the next are the local home's
    "ImageEntrypointUnknown": "ImageEntrypointUnknown",
}
"""Why a container waits that does not start by itself. It is the reason of Ready=False then, so that nobody
waits for a roll-out that never ends."""
NOT_THERE = "the workload is not there yet"
_LASTING = ("InvalidImageName", "CreateContainerConfigError", "Unsupported", "ImageEntrypointUnknown")
"""Those whose message is the same at every try."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition before it has a time."""

    is_so: bool
    reason: str
    message: str


def of_workload(live: Object | None, wanted: Object | None, pods: Sequence[Object]) -> Verdict:
    """Of a Deployment or StatefulSet. Ready when every pod is of the wanted template, and enough of them are
    ready: all; or one, where the scaler says how many, for then more may always be on their way. What was not
    yet seen by the workload's own controller does not count (its observedGeneration)."""
    if live is None or wanted is None or live["metadata"].get("deletionTimestamp"):
        return Verdict(False, "Progressing", NOT_THERE)
    said, asked = live.get("status") or {}, wanted["spec"].get("replicas")
    want = int(live["spec"].get("replicas", 1) if asked is None else asked)
    enough = min(want, 1) if asked is None else want
    is_current = _hash(live) == _hash(wanted) and said.get("observedGeneration", 0) >= live["metadata"].get(
        "generation", 0
    )
    total, updated = said.get("replicas", 0), said.get("updatedReplicas", 0)
    available = said.get("availableReplicas", 0)
    if not is_current:
        return Verdict(False, "Progressing", "the change is being rolled out")
    if want == total == 0:
        return Verdict(True, "ScaledToZero", "no agents are wanted, and none run")
    if updated >= enough and total == updated and available >= enough:
        return Verdict(True, "Ready", f"{min(available, want)} of {want} ready")
    counts = f"{available} of {want} ready, {updated} up to date"
    message = "; ".join(filter(None, (counts, _failure(said), trouble(pods))))
    return Verdict(False, stuck(pods) or ("Stalled" if _is_stalled(said) else "Progressing"), message)


def of_run(run: Run | None, job: Object | None = None, pods: Sequence[Object] = ()) -> Verdict:
    """Of a once or workflow agent. A failed one says its exit code and what that asks of the owner."""
    if run is None:
        return Verdict(False, "Pending", trouble(pods) or "its run has not begun")
    if run.outcome == "Succeeded":
        return Verdict(True, "Succeeded", ending(run))
    if run.outcome == "Failed":
        return Verdict(False, "Failed", f"{ending(run, job)}; a new runs.trigger runs it again")
    if ((job or {}).get("status") or {}).get("ready"):
        return Verdict(True, "Running", f"run {run.name} is under way")
    return Verdict(False, stuck(pods) or "Progressing", trouble(pods) or f"run {run.name} is starting")


def of_schedule(spec: AgentSpec, run: Run | None, live: Object | None, wanted: Object | None) -> Verdict:
    """Of an agent that runs by the clock."""
    if live is None or wanted is None or _hash(live) != _hash(wanted):
        return Verdict(False, "Pending", "the CronJob is not there yet")
    if spec.schedule and spec.schedule.suspend:
        return Verdict(True, "Suspended", "it starts no runs until schedule.suspend is false")
    if run and run.outcome == "Failed":
        return Verdict(False, "RunFailed", ending(run))
    return Verdict(True, "Scheduled", f"it runs at {wanted['spec']['schedule']} {wanted['spec']['timeZone']}")


def ending(run: Run, job: Object | None = None) -> str:
    """How an ended run ended: its exit code and what that asks of the owner, why in the agent's words, and
    what its Job says."""
    told = ": ".join(filter(None, (run.reason, run.message)))
    if run.outcome == "Succeeded":
        how = "" if run.reason in ("", "completed") else f": {told}"  # such as drained
        return f"run {run.name} ended with exit code 0{how}"
    code = "" if run.exit_code is None else f" with exit code {run.exit_code} ({run.intent})"
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    reason = {each["type"]: each.get("reason", "") for each in conditions}.get("Failed", "")
    why = f": {told or reason}" if told or reason else ""
    also = f" ({reason})" if told and reason else ""
    lost = "" if code or why or run.completion_time else "; its Job went away before its end was seen"
    return f"run {run.name} failed{code}{why}{also}{lost}"


def trouble(pods: Sequence[Object]) -> str:
    """What keeps the first pod that is in trouble from starting, in words that do not change at every try."""
    return next((text for text, _ in _troubles(pods)), "")


def stuck(pods: Sequence[Object]) -> str:
    """Why the first pod that does not start by itself waits, in Kubernetes' word; empty if none does."""
    return next((reason for _, reason in _troubles(pods) if reason), "")


def _troubles(pods: Sequence[Object]) -> Iterator[tuple[str, str]]:
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        what, reason = _trouble(pod)
        if what:
            yield f"pod {pod['metadata']['name']}: {what}", reason


def _trouble(pod: Object) -> tuple[str, str]:
    """In words, and the reason if it is one that does not pass."""
    said = pod.get("status") or {}
    conditions = {each["type"]: each for each in said.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True" or pod["metadata"].get("deletionTimestamp"):
        return "", ""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}", ""
    for container in (*(said.get("initContainerStatuses") or ()), *(said.get("containerStatuses") or ())):
        waiting, ended = (container.get("state") or {}).get("waiting") or {}, _code(code_of(container))
        reason = _STUCK.get(waiting.get("reason", ""), "")
        # between two waits it runs for a moment, and is no better for that
        if not reason and ended and container.get("restartCount", 0) > 1:
            reason = "CrashLoopBackOff"
        if reason:
            why = waiting.get("message", "") if reason in _LASTING else ended
            who = "" if container["name"] == CONTAINER else container["name"]
            return ": ".join(filter(None, (who, reason, why))), reason
    return _code(exit_code(pod)), ""


def _code(code: int | None) -> str:
    return "" if code is None else f"exit code {code} ({intent(code)})"


def _failure(said: Object) -> str:
    failed = {each["type"]: each for each in said.get("conditions") or ()}.get("ReplicaFailure", {})
    return str(failed.get("message", "")) if failed.get("status") == "True" else ""


def _is_stalled(said: Object) -> bool:
    conditions = said.get("conditions") or ()
    return any(each["type"] == "Progressing" and each["status"] == "False" for each in conditions)


def _hash(thing: Object) -> str:
    return str((thing["metadata"].get("annotations") or {}).get(TEMPLATE_HASH, ""))
