"""One pod: its address, volumes and containers, from the moment that it is seen until nothing of it runs.

Init containers run in order, each to its end; those with restartPolicy Always are sidecars, which stay until
the others are gone (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/). A pod that
wants what there is not here stays Pending and says why; one that is never restarted fails.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import anyio

from libs.cluster import Object
from libs.cluster.kinds import POD
from libs.errors import ConflictError, InvalidError, MeshError, NotFoundError

from .container import Container
from .host import ADDRESS, FINALIZER, NODE, Host
from .inputs import MissingError
from .objects import edited, write_status
from .volumes import Volumes

_GRACE = 30.0
_RETRY_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Pod:
    """A pod that runs here."""

    def __init__(self, thing: Object, host: Host) -> None:
        self.uid: str = thing["metadata"]["uid"]
        self.key: tuple[str, str] = (thing["metadata"]["namespace"], thing["metadata"]["name"])
        self.folder = host.folder / "pods" / self.uid
        self.grace = float(thing["spec"].get("terminationGracePeriodSeconds", _GRACE))
        self._thing = thing
        self._host = host
        self._spec: Object = thing["spec"]
        self._seen = asyncio.Event()  # set when there is news after what the volumes were last filled from
        self._address = host.addresses.take(self.uid)
        self._started_at = host.now()
        self.volumes = Volumes(self.folder / "volumes", thing, host.inputs)
        policy = self._spec.get("restartPolicy", "Always")
        self._is_once = policy == "Never"
        self._mains = [Container(each, self, host, policy) for each in self._spec["containers"]]
        self._inits = [
            Container(each, self, host, _init_policy(each, policy))
            for each in self._spec.get("initContainers", ())
        ]
        self._sidecars = [
            container
            for container, each in zip(self._inits, self._spec.get("initContainers", ()), strict=True)
            if each.get("restartPolicy") == "Always"
        ]
        self._scope = anyio.CancelScope()
        self._dirty, self._news = asyncio.Event(), asyncio.Event()
        self._initialized = not self._inits
        self._failure: tuple[str, str] | None = None
        self.is_gone = False  # its object, that is
        self._over = False
        self._told: Object = {}
        self._times: dict[str, tuple[str, str]] = {}

    def view(self) -> Object:
        """The pod as it is now, with its address."""
        spec = {"nodeName": NODE, **self._spec}
        return {**self._thing, "spec": spec, "status": {"podIP": self._address, "hostIP": ADDRESS}}

    def changed(self) -> None:
        """Its status is another."""
        self._dirty.set()

    def news(self) -> asyncio.Event:
        """Set as soon as something in its namespace has changed, from now on, that it might read."""
        return self._news

    def update(self, thing: Object) -> None:
        """Its object has changed; stops it if it is to be deleted."""
        self._thing = thing
        metadata = thing["metadata"]
        if metadata.get("deletionTimestamp"):
            self.stop(float(metadata.get("deletionGracePeriodSeconds") or self.grace))

    def tell_news(self) -> None:
        """A ConfigMap, Secret or ServiceAccount of its namespace has changed."""
        self._news.set()
        self._news = asyncio.Event()

    def stop(self, grace: float | None = None, why: tuple[str, str] | None = None) -> None:
        """Has `run` end, within `grace` seconds; `why` (reason, message) makes it a failure."""
        self.grace = self.grace if grace is None else grace
        self._failure = self._failure or why
        self._scope.cancel()

    def kill(self) -> None:
        """Ends its processes at once; to be called when it is stopping."""
        for container in (*self._mains, *self._inits):
            container.kill()

    async def bound_logs(self) -> None:
        """Keeps the logs of its containers from growing without end."""
        for container in (*self._mains, *self._inits):
            try:
                await container.bound_log()
            except OSError as error:
                _log.warning("log of pod %s/%s: %s", *self.key, error)

    async def run(self) -> None:
        """Runs it; returns when its processes are gone and its last status is written."""
        try:
            await self._insist(self._adopt)
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell)
                self.changed()
                await self._live()
                await self.bound_logs()
                self._over = True
                group.cancel_scope.cancel()
            await self._write()
            await self._insist(lambda: release(self._host, self.key, self.uid))
        finally:
            self._host.addresses.free(self.uid)
            shutil.rmtree(self.folder / "volumes", ignore_errors=True)

    async def _adopt(self) -> None:
        """Keeps its object from going before its processes."""

        def keep(thing: Object) -> bool:
            metadata = thing["metadata"]
            is_ours = FINALIZER in metadata.get("finalizers", ())
            if is_ours or metadata["uid"] != self.uid or metadata.get("deletionTimestamp"):
                return False
            metadata["finalizers"] = [*metadata.get("finalizers", ()), FINALIZER]
            return True

        await edited(self._host.cluster, POD, self.key, keep)

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Writes until it is done, or the object is gone."""
        while True:
            try:
                return await write()
            except NotFoundError:
                self.is_gone = True
                return self.stop()
            except MeshError as error:
                _log.warning("pod %s/%s: %s", *self.key, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _live(self) -> None:
        async with anyio.create_task_group() as group:
            with self._scope:
                if await self._mount():
                    group.start_soon(self._keep_fresh)
                    await self._start(group)
            await asyncio.gather(*(each.stop() for each in self._mains))
            for each in reversed(self._inits):
                await each.stop()
            group.cancel_scope.cancel()

    async def _start(self, group: Any) -> None:
        for container in self._inits:
            group.start_soon(container.run)
            if container in self._sidecars:
                await container.begun.wait()
                continue
            await container.ended.wait()
            if container.exit_code != 0:
                self._failure = "Error", f"init container {container.name} failed"
                return
        self._initialized = True
        for container in self._mains:
            group.start_soon(container.run)
        for container in self._mains:
            await container.ended.wait()

    async def _mount(self) -> bool:
        everything = [*self._spec["containers"], *self._spec.get("initContainers", ())]
        while True:
            news = self._seen = self._news
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.volumes.check(everything)
                _check_names(everything)
                for container in (*self._mains, *self._inits):
                    container.check()
                await self.volumes.refresh(self.view(), self._host.clock().timestamp())
            except MissingError as error:
                self._await("ContainerCreating", str(error))
            except InvalidError as error:
                if self._is_once:
                    self._failure = "Unsupported", str(error)
                    return False
                self._await("Unsupported", str(error))
            except OSError as error:
                self._await("CreateContainerError", str(error))
                await asyncio.sleep(self._host.limits.housekeeping)
                continue
            else:
                return True
            await news.wait()

    def _await(self, reason: str, message: str) -> None:
        for container in (*self._mains, *self._inits):
            container.waiting = {"reason": reason, "message": message}
        self.changed()

    async def _keep_fresh(self) -> None:
        while True:
            with anyio.move_on_after(self._host.limits.housekeeping):
                await self._seen.wait()
            is_news, self._seen = self._seen.is_set(), self._news  # before reading, so that none is missed
            try:
                now = self._host.clock().timestamp()
                if is_news or self.volumes.token_due(now):
                    await self.volumes.refresh(self.view(), now)
            except (MeshError, OSError) as error:
                _log.warning("the volumes of pod %s/%s stay as they are: %s", *self.key, error)

    async def _tell(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()

    async def _write(self) -> None:
        """Its status into the store, until it is there or the pod is gone."""
        while not self.is_gone and (status := self.status()) != self._told:
            told = {"metadata": self._thing["metadata"], "status": self._told}

            async def write(told: Object = told, status: Object = status) -> None:
                try:
                    await write_status(self._host.cluster, POD, told, deepcopy(status))
                except ConflictError as error:
                    raise NotFoundError("another pod has its name") from error

            await self._insist(write)
            self._told = status

    def status(self) -> Object:
        """As https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ has it."""
        phase = self._phase()
        mains = [container.status() for container in self._mains]
        inits = [container.status() for container in self._inits]
        ready = phase == "Running" and all(each.ready for each in (*self._mains, *self._sidecars))
        why = dict(zip(("reason", "message"), self._failure, strict=True)) if self._failure else {}
        disrupted = {"DisruptionTarget": True} if why.get("reason") == "Terminated" else {}
        return {
            "phase": phase,
            **why,
            "hostIP": ADDRESS,
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "startTime": self._started_at,
            "conditions": self._conditions(
                {
                    "PodScheduled": True,
                    "Initialized": self._initialized,
                    "ContainersReady": ready,
                    "Ready": ready,
                    **disrupted,
                },
                unready=[each.name for each in (*self._mains, *self._sidecars) if not each.ready],
            ),
            "containerStatuses": mains,
            **({"initContainerStatuses": inits} if inits else {}),
        }

    def _phase(self) -> str:
        codes = [container.exit_code for container in self._mains]
        if self._over:
            good = not self._failure and all(code == 0 for code in codes)
            return "Succeeded" if good else "Failed"
        begun = self._initialized and any(
            "waiting" not in each["state"] or each["lastState"] or each["restartCount"]
            for each in (container.status() for container in self._mains)
        )
        return "Running" if begun else "Pending"

    def _conditions(self, values: dict[str, bool], unready: list[str]) -> list[Object]:
        conditions = []
        for kind, value in values.items():
            text = str(value)
            if self._times.get(kind, ("", ""))[0] != text:
                self._times[kind] = text, self._host.now()
            condition = {"type": kind, "status": text, "lastTransitionTime": self._times[kind][1]}
            if not value and kind.endswith("Ready"):
                message = f"containers that are not ready: {', '.join(unready)}"
                condition |= {"reason": "ContainersNotReady", "message": message}
            conditions.append(condition)
        return conditions


async def release(host: Host, key: tuple[str, str], uid: str) -> None:
    """Lets a pod's object go, now that nothing of it runs."""

    def let_go(thing: Object) -> bool:
        finalizers = thing["metadata"].get("finalizers", [])
        if thing["metadata"]["uid"] != uid or FINALIZER not in finalizers:
            return False
        finalizers.remove(FINALIZER)
        return True

    with suppress(NotFoundError):
        await edited(host.cluster, POD, key, let_go)


def _check_names(containers: list[Object]) -> None:
    names = [container["name"] for container in containers]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidError(f"two containers are called {', '.join(sorted(twice))}")


def _init_policy(declared: Object, policy: str) -> Any:
    if declared.get("restartPolicy") == "Always":
        return "Always"
    return "Never" if policy == "Never" else "OnFailure"
