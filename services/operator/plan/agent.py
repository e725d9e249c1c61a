"""The workload of an Agent, by its mode."""

from __future__ import annotations

from libs.cluster import Object, key_of
from libs.cluster.kinds import CONFIG_MAP, CRON_JOB, DEPLOYMENT, JOB
from libs.resources.agent import AgentSpec, Runs, Schedule

from .. import exits
from . import environment
from .context import Context
from .duration import seconds
from .environment import WORKFLOW
from .owned import AGENT_LABEL, SPEC_HASH, labels, owned
from .pod import pod_template, rolling
from .reading import content_of, spec_hash
from .template import CONTAINER

PROGRESS_SECONDS = 600
_DOCUMENT = "workflow"


def objects(thing: Object, spec: AgentSpec, context: Context) -> list[Object]:
    """In the order of applying: what pods mount first."""
    name = key_of(thing)[1]
    pod = pod_template(labels(thing, name), spec, environment.of_agent(spec), context, _mounted(name, spec))
    document = _document(thing, name, spec)
    match spec.mode:
        case "once" | "workflow":
            workload = owned(thing, name, JOB, name, {"spec": _job(pod, spec)})
            workload["metadata"]["annotations"][SPEC_HASH] = spec_hash(spec)
        case "schedule":
            workload = owned(thing, name, CRON_JOB, name, {"spec": _cron_job(pod, spec)})
        case "loop" | "reactive":
            pod = rolling(pod, content_of(spec, context.hashes))
            workload = owned(thing, name, DEPLOYMENT, name, {"spec": _singleton(name, pod)})
    return [*document, workload]


def _mounted(name: str, spec: AgentSpec) -> dict[str, Object]:
    if spec.workflow is None:
        return {}
    reference = spec.workflow.config_map_key_ref
    source, key = (reference.name, reference.key) if reference else (f"{name}-workflow", _DOCUMENT)
    return {WORKFLOW: {"configMap": {"name": source, "items": [{"key": key, "path": _DOCUMENT}]}}}


def _document(thing: Object, name: str, spec: AgentSpec) -> list[Object]:
    if spec.workflow is None or not spec.workflow.inline:
        return []
    return [owned(thing, name, CONFIG_MAP, f"{name}-workflow", {"data": {_DOCUMENT: spec.workflow.inline}})]


def _job(pod: Object, spec: AgentSpec) -> Object:
    runs = spec.runs or Runs()
    job: Object = {
        "backoffLimit": runs.retries,
        "podFailurePolicy": exits.failure_policy(CONTAINER),
        "template": {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}},
    }
    if runs.deadline:
        job["activeDeadlineSeconds"] = seconds(runs.deadline)
    if runs.keep_for:
        job["ttlSecondsAfterFinished"] = seconds(runs.keep_for)
    return job


def _cron_job(pod: Object, spec: AgentSpec) -> Object:
    schedule = spec.schedule or Schedule(cron="")
    cron_job: Object = {
        "schedule": schedule.cron,
        "timeZone": schedule.time_zone,
        "suspend": schedule.suspend,
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": _job(pod, spec)},
    }
    if schedule.starting_deadline:
        cron_job["startingDeadlineSeconds"] = seconds(schedule.starting_deadline)
    return cron_job


def _singleton(name: str, pod: Object) -> Object:
    return {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # never two of one agent
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {AGENT_LABEL: name}},
        "template": pod,
    }
