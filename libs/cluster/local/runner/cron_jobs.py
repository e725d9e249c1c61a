"""CronJobs: a Job at each time of a schedule. Of times that passed while nobody looked, only the last counts.

https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/
"""

from __future__ import annotations

import logging
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from libs.cluster import Object
from libs.cluster.kinds import CRON_JOB, JOB
from libs.cluster.local.rules import zone_of
from libs.errors import ConflictError, InvalidError

from .declared import check
from .host import Host, moment_of, stamp
from .jobs import finished
from .objects import is_deleted, owned, owner_reference, write_status

_MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Times:
    """The last time of the schedule up to now that has not been served, if there is one, and the next one."""

    due: datetime | None
    next: datetime


async def reconcile(host: Host, namespace: str, name: str) -> float | None:
    """One pass; seconds until the next one is wanted, None if only when something changes. NotFoundError."""
    cron_job, now = await host.cluster.get(CRON_JOB, namespace, name), host.clock()
    if is_deleted(cron_job):
        return None
    check(CRON_JOB, cron_job)
    jobs = await owned(host.cluster, JOB, cron_job)
    await _prune(host, cron_job, jobs)
    active = [job for job in jobs if not finished(job)]
    served, wait = cron_job.get("status", {}).get("lastScheduleTime"), None
    if not cron_job["spec"].get("suspend"):
        try:
            times = times_of(cron_job, now)
        except InvalidError as error:
            _log.warning("CronJob %s/%s: %s", namespace, name, error)
            return None
        wait = (times.next - now).total_seconds()
        policy = cron_job["spec"].get("concurrencyPolicy", "Allow")
        if times.due and not (active and policy == "Forbid"):
            if policy == "Replace":
                for job in active:
                    await host.cluster.delete(JOB, namespace, job["metadata"]["name"])
                active = []
            job = job_of(cron_job, times.due)
            with suppress(ConflictError):  # made by a pass that could not write the status
                active.append(await host.cluster.create(job))
            served = stamp(times.due)
    await write_status(host.cluster, CRON_JOB, cron_job, _status(cron_job, jobs, active, served))
    return wait


def times_of(cron_job: Object, now: datetime) -> Times:
    """What is due at a moment. InvalidError if its schedule or time zone cannot be read."""
    spec, zone = cron_job["spec"], _zone(cron_job["spec"].get("timeZone"))
    schedule = _MACROS.get(spec["schedule"], spec["schedule"])
    try:
        last = next(CronSim(schedule, now.astimezone(zone) + timedelta(microseconds=1), reverse=True))
        coming = next(CronSim(schedule, now.astimezone(zone)))
    except (CronSimError, StopIteration) as error:
        raise InvalidError(violations={"spec.schedule": f"{schedule!r}: {error or 'never'}"}) from error
    served = cron_job.get("status", {}).get("lastScheduleTime")
    since = moment_of(served or cron_job["metadata"]["creationTimestamp"])
    limit = spec.get("startingDeadlineSeconds")
    is_late = limit is not None and (now - last).total_seconds() > limit
    return Times(None if last <= since or is_late else last.astimezone(UTC), coming.astimezone(UTC))


def job_of(cron_job: Object, at: datetime) -> Object:
    """The Job of one time of the schedule; its name is the same for the same time."""
    template = deepcopy(cron_job["spec"]["jobTemplate"])
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": f"{cron_job['metadata']['name'][:52]}-{int(at.timestamp()) // 60}",
            "namespace": cron_job["metadata"]["namespace"],
            "labels": metadata.get("labels", {}),
            "annotations": {**metadata.get("annotations", {}), _AT: stamp(at)},
            "ownerReferences": [owner_reference(cron_job)],
        },
        "spec": template["spec"],
    }


async def _prune(host: Host, cron_job: Object, jobs: list[Object]) -> None:
    """Deletes all but the newest finished Jobs."""
    spec, namespace = cron_job["spec"], cron_job["metadata"]["namespace"]
    limits = (
        ("Complete", spec.get("successfulJobsHistoryLimit", 3)),
        ("Failed", spec.get("failedJobsHistoryLimit", 1)),
    )
    for outcome, limit in limits:
        done = [job for job in jobs if finished(job) == outcome]
        done.sort(key=lambda job: job["metadata"].get("annotations", {}).get(_AT, ""), reverse=True)
        for job in done[limit:]:
            await host.cluster.delete(JOB, namespace, job["metadata"]["name"], uid=job["metadata"]["uid"])


def _status(cron_job: Object, jobs: list[Object], active: list[Object], served: str | None) -> Object:
    before = cron_job.get("status", {}).get("lastSuccessfulTime", "")
    done = [job["status"].get("completionTime", "") for job in jobs if finished(job) == "Complete"]
    successful = max([before, *done])
    references = [
        {"apiVersion": JOB.api_version, "kind": JOB.name, "namespace": job["metadata"]["namespace"]}
        | {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        for job in active
    ]
    return {
        **({"active": references} if references else {}),
        **({"lastScheduleTime": served} if served else {}),
        **({"lastSuccessfulTime": successful} if successful else {}),
    }


def _zone(name: str | None) -> tzinfo:
    zone = zone_of(name) if name else UTC
    if zone is None:
        raise InvalidError(violations={"spec.timeZone": f"there is no {name}"})
    return zone
