"""What a runner that was killed has left: processes, pods that look alive, secrets in volumes."""

from __future__ import annotations

import asyncio
import logging
import shutil
from copy import deepcopy
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from libs.cluster import Object
from libs.cluster.kinds import POD
from libs.cluster.local.cluster import LocalCluster

from .objects import is_ended, write_status
from .process import end_left_over

_log = logging.getLogger(__name__)


async def sweep(cluster: LocalCluster, folder: Path, now: str) -> None:
    """Ends all of it, and says so of the pods."""
    running = list(psutil.process_iter())
    for record in sorted((folder / "pods").glob("*/*.process")):
        if ended := await asyncio.to_thread(end_left_over, record, running):
            _log.warning("ended %d processes left over from an earlier run", ended)
    known = set()
    for pod in (await cluster.list(POD)).items:
        known.add(pod["metadata"]["uid"])
        if pod.get("status", {}).get("startTime") and not is_ended(pod):
            await write_status(cluster, POD, pod, lost(pod, now))
    for left in (folder / "pods").glob("*"):
        shutil.rmtree(left / "volumes" if left.name in known else left, ignore_errors=True)


def lost(thing: Object, now: str) -> Object:
    """The status of a pod whose processes ended with an earlier run of the runner."""
    status: Object = deepcopy(thing.get("status", {}))
    status |= {"phase": "Failed", "reason": "Terminated", "message": "the plane ended while it ran"}
    for kind in ("Ready", "ContainersReady", "DisruptionTarget"):
        value = str(kind == "DisruptionTarget")
        kept = [each for each in status.get("conditions", ()) if each["type"] != kind]
        status["conditions"] = [*kept, {"type": kind, "status": value, "lastTransitionTime": now}]
    for each in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
        each["ready"] = each["started"] = False
        if running := each["state"].get("running"):
            unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": now}
            each["state"] = {"terminated": {**unknown, "startedAt": running["startedAt"]}}
    return status
