"""Runs: what the Jobs of an agent and their pods say about how it ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from libs.cluster import Object, controller_of
from libs.cluster.kinds import CRON_JOB, JOB
from libs.exits import intent
from libs.resources.agent import AgentSpec
from libs.resources.status import AgentStatus, Run

from .plan.change import ended, has_run
from .plan.owned import SPEC_HASH
from .plan.reading import spec_hash
from .plan.template import CONTAINER
from .report import report_of, words_of

_OUTCOMES = {"Complete": "Succeeded", "Failed": "Failed", "": "Running"}
_FROM_PODS = ("exit_code", "intent", "reason", "message", "input_tokens", "output_tokens", "steps")


def belongs(child: Object, thing: Object) -> bool:
    """Whether `thing` is the controller of it."""
    owner = controller_of(child)
    return owner is not None and owner["uid"] == thing["metadata"].get("uid")


def runs_of(
    thing: Object, spec: AgentSpec | None, children: Iterable[Object], pods: Sequence[Object]
) -> list[Run]:
    """The runs that the Jobs tell of, oldest first. Of a once or workflow agent, only that of the spec as it
    is; of a schedule, all that are kept. A Job that was not started yet is no run."""
    known = list(children)
    clocks = [each for each in known if each["kind"] == CRON_JOB.name and belongs(each, thing)]
    current = spec_hash(spec) if spec else None
    found = []
    for job in known:
        if job["kind"] != JOB.name or not (job.get("status") or {}).get("startTime"):
            continue
        ours = belongs(job, thing) and (job["metadata"].get("annotations") or {}).get(SPEC_HASH) == current
        if ours or any(belongs(job, clock) for clock in clocks):
            found.append(_run(job, pods))
    return sorted(found, key=lambda run: (run.start_time, run.name))


def last_run(thing: Object, spec: AgentSpec | None, previous: AgentStatus, runs: Sequence[Run]) -> Run | None:
    """The newest; or the one known from before, if its Job is gone and no newer spec asks for another."""
    before = previous.last_run
    if runs:
        newest = runs[-1]
        return _remembered(newest, before) if before and _same(newest, before) else newest
    if spec and spec.mode == "schedule":
        return before
    if before is None or not has_run(thing):
        return None
    if before.outcome == "Running":  # its Job expired unseen
        return msgspec.structs.replace(before, outcome="Failed")
    return before


def newly_ended(before: Run | None, runs: Sequence[Run]) -> int:
    """How many of the runs ended since `before` was the last one that was known."""

    def is_new(run: Run) -> bool:
        if before is None:
            return True
        if _same(run, before):
            return before.outcome == "Running"
        return run.start_time > before.start_time

    return sum(run.outcome != "Running" and is_new(run) for run in runs)


def exit_code(pod: Object) -> int | None:
    """How the agent in the pod ended, or ended the last time; None if it has not."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container["name"] == CONTAINER:
            return code_of(container)
    return None


def code_of(container: Object) -> int | None:
    """The same of any container, by its entry in the pod's status."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        if "terminated" in state:
            return int(state["terminated"]["exitCode"])
    return None


def _run(job: Object, pods: Sequence[Object]) -> Run:
    said, how = job["status"], ended(job)
    last = _last(job, pods, how) if how else {}
    code = 0 if how == "Complete" else exit_code(last)
    run = Run(
        name=job["metadata"]["name"],
        start_time=said["startTime"],
        completion_time=said.get("completionTime") or _failed_at(said) if how else "",
        outcome=_OUTCOMES[how],
        exit_code=code,
        intent="" if code is None else intent(code),
    )
    if (report := report_of(last)) is None:
        return run
    return msgspec.structs.replace(
        run,
        reason=report.status,
        message=words_of(report),
        input_tokens=report.usage.input_tokens,
        output_tokens=report.usage.output_tokens,
        steps=report.usage.steps,
    )


def _last(job: Object, pods: Sequence[Object], how: str) -> Object:
    """The pod that decided how the Job ended; {} if it is gone."""
    codes = [(pod, exit_code(pod)) for pod in pods if belongs(pod, job)]
    ends = [pod for pod, code in codes if code is not None and (how == "Failed" or code == 0)]
    ends.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]))
    return ends[-1] if ends else {}


def _remembered(run: Run, before: Run) -> Run:
    """The run with what was known of it before its pod was gone."""
    known = {name: getattr(before, name) for name in _FROM_PODS if getattr(run, name) in (None, "")}
    return msgspec.structs.replace(run, **known)


def _failed_at(said: Object) -> str:
    conditions = said.get("conditions") or ()
    return next((each.get("lastTransitionTime", "") for each in conditions if each["type"] == "Failed"), "")


def _same(one: Run, other: Run) -> bool:
    return (one.name, one.start_time) == (other.name, other.start_time)
