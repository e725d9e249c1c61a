"""A real local home with a runner, and words to speak of its workloads."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from libs.cluster import Object, controller_of
from libs.cluster.kinds import DEPLOYMENT, POD, Kind
from libs.cluster.local import LocalCluster
from libs.cluster.local.runner import Limits, Runner
from libs.errors import NotFoundError

PYTHON = [sys.executable, "-I", "-S", "-c"]
SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
SERVE = """
import http.server, os, pathlib
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if pathlib.Path(os.environ['SICK'] + self.path).exists() else 200)
        self.end_headers()
http.server.HTTPServer((os.environ['HOST'], 8080), Answer).serve_forever()
"""
TIMEOUT = 20.0
LIMITS = Limits(pods=5, log_bytes=100_000, housekeeping=0.1, stop=5)


@dataclass
class Clock:
    """The time, plus what a test has added to it."""

    ahead: timedelta = field(default_factory=timedelta)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class World:
    """A home whose workloads run."""

    cluster: LocalCluster
    folder: Path
    clock: Clock
    runner: Runner
    running: asyncio.Task[None]

    async def apply(self, thing: Object) -> Object:
        return await self.cluster.apply(thing, "test")

    async def pods(self, owner: str = "") -> list[Object]:
        pods = (await self.cluster.list(POD, "default")).items
        return [pod for pod in pods if not owner or (controller_of(pod) or {}).get("name") == owner]

    async def get(self, kind: Kind, name: str) -> Any:
        with suppress(NotFoundError):
            return await self.cluster.get(kind, "default", name)
        return None

    async def until(self, see: Callable[[], Awaitable[Any]]) -> Any:
        """What `see` gives as soon as it is something."""
        async with asyncio.timeout(TIMEOUT):
            while not (seen := await see()):
                if self.running.done():
                    self.running.result()
                await asyncio.sleep(0.01)
        return seen

    async def ready(self, owner: str, count: int = 1) -> list[Object]:
        """The owner's pods, once so many are ready and there are no others."""

        async def see() -> list[Object]:
            pods = await self.pods(owner)
            good = [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
            return good if len(good) == len(pods) == count else []

        return await self.until(see)  # type: ignore[no-any-return]

    async def pod(self, name: str, fits: Callable[[Object], Any]) -> Object:
        """The pod of that name as soon as it is so."""

        async def see() -> Object | None:
            pod = await self.get(POD, name)
            return pod if pod is not None and fits(pod) else None

        return await self.until(see)  # type: ignore[no-any-return]

    async def passed(self) -> None:
        """Every workload that was in the queue before has been looked at."""
        name = f"empty-{uuid.uuid4()}"
        await self.apply(deployment(name, replicas=0))

        async def see() -> bool:
            thing = await self.get(DEPLOYMENT, name)
            return thing is not None and "status" in thing

        await self.until(see)

    async def gone(self, kind: Kind, name: str) -> None:
        async def see() -> bool:
            return await self.get(kind, name) is None

        await self.until(see)

    def log(self, pod: Object, container: str = "agent", previous: bool = False) -> str:
        path = self.folder / "pods" / pod["metadata"]["uid"] / f"{container}.log{'.1' if previous else ''}"
        return path.read_text() if path.exists() else ""

    async def said(self, pod: Object, text: str, container: str = "agent") -> str:
        """The container's log as soon as it has this text."""

        async def see() -> str:
            log = self.log(pod, container)
            return log if text in log else ""

        return await self.until(see)  # type: ignore[no-any-return]

    def processes(self) -> list[psutil.Process]:
        """What runs with a HOSTNAME of ours: the children, and theirs."""
        return processes_of(self.folder)


def processes_of(folder: Path) -> list[psutil.Process]:
    """All that runs with WORLD=<folder>: what pods have started, however deep."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("WORLD") == str(folder):
                found.append(process)
    return found


def end_all(folder: Path) -> list[str]:
    """Kills what is left after a moment in which killed processes may vanish; what that was."""
    deadline = time.monotonic() + 2
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in left:
        process.kill()
    return [str(process) for process in left]


def container(code, name="agent", **more):
    return {"name": name, "image": "none", "command": ["python", code], **more}


def template(code=SLEEP, *, spec=None, **more):
    return {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [container(code, **more)], "terminationGracePeriodSeconds": 5, **(spec or {})},
    }


def workload(kind: str, name: str, spec: Object) -> Object:
    version = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "Pod": "v1"}.get(kind, "batch/v1")
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def deployment(name="a", pod=None, **more):
    selector = {"matchLabels": {"app": "a"}}
    return workload("Deployment", name, {"selector": selector, "template": pod or template(), **more})


def job(name: str, pod: Object, **more: Any) -> Object:
    pod["spec"]["restartPolicy"] = "Never"
    return workload("Job", name, {"template": pod, **more})


def is_ready(pod: Object) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in pod.get("status", {}).get("conditions", ())
    )


def state(pod: Object, container: int = 0) -> Object:
    found: Object = pod["status"]["containerStatuses"][container]["state"]
    return found


def pid_of(world: World, pod: Object, name: str = "agent") -> int:
    record = world.folder / "pods" / pod["metadata"]["uid"] / f"{name}.process"
    return int(json.loads(record.read_text())["pid"])
