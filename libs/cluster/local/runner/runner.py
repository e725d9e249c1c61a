"""`Runner`: the controllers and the pods of the local home, from one queue and one watch a kind."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio

from libs.cluster import Object, controller_of, key_of
from libs.cluster.informer import Informer
from libs.cluster.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)  # fmt: skip
from libs.cluster.local.cluster import LocalCluster
from libs.cluster.workqueue import WorkQueue
from libs.errors import ConflictError, InvalidError, MeshError, NotFoundError

from . import cron_jobs, deployments, jobs, stateful_sets
from .declared import check
from .host import Clock, Host, Limits, stamp
from .inputs import Inputs
from .objects import is_deleted, is_ended, write_status
from .pods import Pod, release
from .process import dying_with_us
from .sweep import sweep

Key = tuple[str, str, str]  # kind, namespace, name
Reconcile = Callable[[Host, str, str], Awaitable[float | None]]

_CONTROLLERS: dict[Kind, Reconcile] = {
    DEPLOYMENT: deployments.reconcile,
    STATEFUL_SET: stateful_sets.reconcile,
    JOB: jobs.reconcile,
    CRON_JOB: cron_jobs.reconcile,
}
_BY_NAME = {kind.name: reconcile for kind, reconcile in _CONTROLLERS.items()}

_LIMITS = Limits()
_LONGEST_WAIT = 60.0  # the clock may jump, and seconds do not count while a machine sleeps

_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


class Runner:
    """Runs what the store's workloads say, in `folder`/pods. There is one runner of a folder at a time."""

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        *,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        clock: Clock = utc_now,
        limits: Limits = _LIMITS,
    ) -> None:
        """To be made inside the event loop. `commands` says what the first word of a container's command
        stands for; `environment` is all that a child has beside its own variables. `clock` is the time of
        objects, schedules and deadlines."""
        self._cluster = cluster
        self._folder = folder
        self._commands, self._environment, self._clock = commands, environment, clock
        self._limits = limits
        self._pods: dict[str, Pod] = {}  # by uid
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._queue: WorkQueue[Key] = WorkQueue()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Sweeps, then runs everything until cancelled; then stops every pod within its grace, a minute at
        most. Stopped pods are Failed (Terminated): their workloads make new ones at the next start. To be
        run by the main thread, whose death the children notice."""
        await self.sweep()
        host = Host(
            cluster=self._cluster,
            inputs=Inputs(self._cluster),
            folder=self._folder,
            commands=self._commands,
            environment=self._environment,
            clock=self._clock,
            prefix=await dying_with_us(),
            limits=self._limits,
        )
        try:
            async with anyio.create_task_group() as group:
                for kind in (*_CONTROLLERS, POD, CONFIG_MAP, SECRET, SERVICE_ACCOUNT):
                    informer = Informer(self._cluster, kind)
                    informer.subscribe(self._subscriber(kind, host))
                    group.start_soon(informer.run)
                group.start_soon(self._work, host)
                await self._broken
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop_all()

    async def sweep(self) -> None:
        """Ends what an earlier run that was killed has left running, and says so of its pods, which are
        Failed then. Their volumes are removed, and the logs of those that are no more."""
        await sweep(self._cluster, self._folder, stamp(self._clock()))

    def hurry(self) -> None:
        """Ends every process at once; for a second Ctrl-C while `run` is stopping."""
        for pod in self._pods.values():
            pod.kill()

    def touch(self, kind: Kind, namespace: str, name: str) -> None:
        """Looks at a workload now, for a clock that jumped."""
        self._queue.add((kind.name, namespace, name))

    def _subscriber(self, kind: Kind, host: Host) -> Callable[[Object | None, Object | None], None]:
        def tell(old: Object | None, new: Object | None) -> None:
            thing = new or old
            if thing is None:
                return
            namespace, name = key_of(thing)
            if kind in _CONTROLLERS:
                self._queue.add((kind.name, namespace, name))
            if kind in (CONFIG_MAP, SECRET, SERVICE_ACCOUNT):
                for pod in self._pods.values():
                    if pod.key[0] == namespace:
                        pod.tell_news()
            elif (owner := controller_of(thing)) and owner["kind"] in _BY_NAME:
                self._queue.add((owner["kind"], namespace, owner["name"]))
            if kind == POD:
                self._see(thing, host, is_there=new is not None)

        return tell

    def _see(self, thing: Object, host: Host, *, is_there: bool) -> None:
        """A pod is new, another, or gone."""
        uid = thing["metadata"]["uid"]
        if pod := self._pods.get(uid):
            if is_there:
                pod.update(thing)
            else:
                pod.is_gone = True
                pod.stop(0.0)
        elif not is_there:
            shutil.rmtree(self._folder / "pods" / uid, ignore_errors=True)
        elif is_deleted(thing):
            self._queue.add((POD.name, *key_of(thing)))
        elif not is_ended(thing):
            try:
                check(POD, thing)
            except InvalidError:
                return self._queue.add((POD.name, *key_of(thing)))
            self._pods[uid] = pod = Pod(thing, host)
            task = self._tasks[uid] = asyncio.create_task(pod.run(), name=f"pod {'/'.join(pod.key)}")
            task.add_done_callback(lambda task: self._over(pod, task))

    def _over(self, pod: Pod, task: asyncio.Task[None]) -> None:
        """A pod has ended, and nothing of it runs any more."""
        del self._pods[pod.uid], self._tasks[pod.uid]
        if not task.cancelled() and (error := task.exception()):
            if not self._broken.done():
                self._broken.set_exception(error)
        elif pod.is_gone:
            shutil.rmtree(pod.folder, ignore_errors=True)

    async def _work(self, host: Host) -> None:
        while True:
            key = await self._queue.get()
            kind, namespace, name = key
            reconcile = _BY_NAME.get(kind, self._settle)
            try:
                wait = await reconcile(host, namespace, name)
            except NotFoundError:
                self._queue.forget(key)
            except ConflictError:  # it has changed, or gone, since it was read
                self._queue.retry(key)
            except InvalidError as error:
                _log.warning("%s %s/%s: %s", kind, namespace, name, error)
                self._queue.forget(key)
            except MeshError as error:
                _log.warning("%s %s/%s: %s", kind, namespace, name, error, extra={"reason": error.reason})
                self._queue.retry(key)
            else:
                self._queue.forget(key)
                if wait is not None:
                    self._queue.add_after(key, min(wait, _LONGEST_WAIT))
            finally:
                self._queue.done(key)

    async def _settle(self, host: Host, namespace: str, name: str) -> None:
        """Lets a pod go that is to be deleted and does not run, and fails one that cannot."""
        pod = await host.cluster.get(POD, namespace, name)
        if pod["metadata"]["uid"] in self._pods:
            return
        if is_deleted(pod):
            return await release(host, (namespace, name), pod["metadata"]["uid"])
        try:
            check(POD, pod)
        except InvalidError as error:
            status = {"phase": "Failed", "reason": "Invalid", "message": str(error)}
            await write_status(self._cluster, POD, pod, status)

    async def _stop_all(self) -> None:
        for pod in self._pods.values():
            pod.stop(min(pod.grace, self._limits.stop), ("Terminated", "the plane was stopped"))
        if tasks := list(self._tasks.values()):
            await asyncio.wait(tasks)
