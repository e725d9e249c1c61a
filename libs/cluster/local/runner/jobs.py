"""Jobs: pods until enough of them succeed, or the Job has failed.

As https://kubernetes.io/docs/concepts/workloads/controllers/job/, with a first retry after 1 s instead of 10.
A Job is Complete or Failed only when nothing of it runs any more; until then it is SuccessCriteriaMet or
FailureTarget. Pods stay as the record of what happened until the Job goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from libs.cluster import Object
from libs.cluster.kinds import JOB, POD

from .declared import check
from .host import Host, moment_of
from .objects import (
    condition,
    condition_of,
    is_deleted,
    is_ended,
    is_ready,
    owned,
    pod_from,
    suffix,
    write_status,
)  # fmt: skip

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 360.0
_MOST_DOUBLINGS = 10
_BACKOFF_LIMIT = 6


@dataclass(frozen=True)
class Verdict:
    """Why a Job is over: the type of its condition, reason and message."""

    type: str
    reason: str
    message: str


async def reconcile(host: Host, namespace: str, name: str) -> float | None:
    """One pass; seconds until the next one is wanted, None if only when something changes. NotFoundError."""
    job, now = await host.cluster.get(JOB, namespace, name), host.clock()
    if is_deleted(job):
        return None
    check(JOB, job)
    if finished(job):
        return await _expire(host, job, now)
    pods = await owned(host.cluster, POD, job)
    ended = [pod for pod in pods if is_ended(pod)]
    active = [pod for pod in pods if not is_ended(pod) and not is_deleted(pod)]
    stopping = [pod for pod in pods if not is_ended(pod) and is_deleted(pod)]
    suspended = bool(job["spec"].get("suspend"))
    verdict = None if suspended else judge(job, ended, now)
    waits: list[float] = []
    if verdict or suspended:
        for pod in active:
            await host.cluster.delete(POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        stopping, active = [*stopping, *active], []
    else:
        waits += list(_deadline(job, now))
        succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in ended)
        left = job["spec"].get("completions", 1) - succeeded
        wanted = min(job["spec"].get("parallelism", 1), left) - len(active) - len(stopping)
        pause = _pause(ended, now)
        if wanted > 0 and pause > 0:
            waits.append(pause)
        elif wanted > 0:
            possible = min(wanted, await host.room())
            for _ in range(possible):
                active.append(await host.cluster.create(_pod(job)))
            waits += [1.0] if possible < wanted else []
    await write_status(host.cluster, JOB, job, status(job, ended, active, stopping, verdict, host.now()))
    return min(waits, default=None)


def finished(job: Object) -> str:
    """ "Complete" or "Failed"; "" while it is neither."""
    true = [kind for kind in ("Complete", "Failed") if condition_of(job, kind).get("status") == "True"]
    return true[0] if true else ""


def judge(job: Object, ended: list[Object], now: datetime) -> Verdict | None:
    """Whether the Job is over, from its ended pods and the time."""
    spec = job["spec"]
    before = condition_of(job, "FailureTarget")
    if before.get("status") == "True":
        return Verdict("Failed", before["reason"], before["message"])
    failed = 0
    for pod in ended:
        if pod["status"]["phase"] != "Failed":
            continue
        action, why = policy_of(spec, pod)
        if action == "FailJob":
            return Verdict("Failed", "PodFailurePolicy", why)
        failed += action == "Count"
    if failed > spec.get("backoffLimit", _BACKOFF_LIMIT):
        return Verdict("Failed", "BackoffLimitExceeded", "it failed more often than its backoffLimit says")
    if sum(pod["status"]["phase"] == "Succeeded" for pod in ended) >= spec.get("completions", 1):
        return Verdict("Complete", "CompletionsReached", "enough of its pods have succeeded")
    if any(left <= 0 for left in _deadline(job, now)):
        return Verdict("Failed", "DeadlineExceeded", "it was active longer than its activeDeadlineSeconds")
    return None


def policy_of(spec: Object, pod: Object) -> tuple[str, str]:
    """What the Job's podFailurePolicy says of a failed pod (FailJob, Ignore or Count), and why."""
    for index, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules", ())):
        name = pod["metadata"]["name"]
        if codes := rule.get("onExitCodes"):
            for container, code in _exit_codes(pod):
                named = codes.get("containerName") in (None, container)
                listed = code in codes["values"]
                if named and code != 0 and listed == (codes["operator"] == "In"):
                    why = f"container {container} of pod {name} failed with exit code {code}"
                    return rule["action"], f"{why} matching {rule['action']} rule at index {index}"
        for pattern in rule.get("onPodConditions", ()):
            if condition_of(pod, pattern["type"]).get("status") == pattern.get("status", "True"):
                why = f"pod {name} has condition {pattern['type']}"
                return rule["action"], f"{why} matching {rule['action']} rule at index {index}"
    return "Count", ""


def status(
    job: Object,
    ended: list[Object],
    active: list[Object],
    stopping: list[Object],
    verdict: Verdict | None,
    now: str,
) -> Object:
    """The Job's status."""
    before: Object = job.get("status", {})
    suspended = bool(job["spec"].get("suspend"))
    failures = sum(
        pod["status"]["phase"] == "Failed" and policy_of(job["spec"], pod)[0] != "Ignore" for pod in ended
    )
    conditions = [each for each in before.get("conditions", ()) if each["type"] != "Suspended"]
    if suspended or condition_of(job, "Suspended"):
        reason = "JobSuspended" if suspended else "JobResumed"
        conditions.append(condition(job, "Suspended", suspended, reason, "", now))
    if verdict:
        first = "FailureTarget" if verdict.type == "Failed" else "SuccessCriteriaMet"
        kinds = [first] if stopping else [first, verdict.type]
        conditions = [each for each in conditions if each["type"] not in kinds]
        conditions += [condition(job, kind, True, verdict.reason, verdict.message, now) for kind in kinds]
    over = bool(verdict) and not stopping
    started = {} if suspended else {"startTime": before.get("startTime", now)}
    completed = {"completionTime": now} if over and verdict and verdict.type == "Complete" else {}
    return {
        **started,
        **completed,
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "terminating": len(stopping),
        "succeeded": sum(pod["status"]["phase"] == "Succeeded" for pod in ended),
        "failed": max(failures, before.get("failed", 0)),
        **({"conditions": conditions} if conditions else {}),
    }


async def _expire(host: Host, job: Object, now: datetime) -> float | None:
    ttl = job["spec"].get("ttlSecondsAfterFinished")
    if ttl is None:
        return None
    ended_at = moment_of(condition_of(job, finished(job))["lastTransitionTime"])
    left: float = ttl - (now - ended_at).total_seconds()
    if left > 0:
        return left
    metadata = job["metadata"]
    await host.cluster.delete(JOB, metadata["namespace"], metadata["name"], uid=metadata["uid"])
    return None


def _pod(job: Object) -> Object:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    labels = {
        "job-name": name,
        "controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/controller-uid": uid,
    }
    made = pod_from(job["spec"]["template"], job, f"{name[:57]}-{suffix()}", labels)
    made["spec"].setdefault("restartPolicy", "Never")
    return made


def _deadline(job: Object, now: datetime) -> Iterator[float]:
    """Seconds until its activeDeadlineSeconds are over, if it has any."""
    seconds = job["spec"].get("activeDeadlineSeconds")
    if seconds is not None:
        started = job.get("status", {}).get("startTime")
        yield seconds - ((now - moment_of(started)).total_seconds() if started else 0)


def _pause(ended: list[Object], now: datetime) -> float:
    """Seconds until the next pod may be made, after failures."""
    failed = [pod for pod in ended if pod["status"]["phase"] == "Failed"]
    if not failed:
        return 0.0
    pause: float = min(_FIRST_RETRY * 2 ** min(len(failed) - 1, _MOST_DOUBLINGS), _LONGEST_RETRY)
    last = max((moment_of(text) for pod in failed for text in _ends(pod)), default=now)
    return pause - (now - last).total_seconds()


def _ends(pod: Object) -> Iterator[str]:
    for each in _terminated(pod):
        yield each[1]["finishedAt"]


def _exit_codes(pod: Object) -> Iterator[tuple[str, int]]:
    for name, terminated in _terminated(pod):
        yield name, terminated["exitCode"]


def _terminated(pod: Object) -> Iterator[tuple[str, Object]]:
    status = pod.get("status", {})
    for each in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
        if "terminated" in each["state"]:
            yield each["name"], each["state"]["terminated"]
