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
_BUG = "RunnerError"
_LONGEST_MESSAGE = 500
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
        self._bugs: dict[str, str] = {}  # what ended pods that should not have ended, by uid

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
                group.start_soon(self._bound_logs)
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
            self._bugs.pop(uid, None)
            shutil.rmtree(self._folder / "pods" / uid, ignore_errors=True)
        elif is_deleted(thing):
            self._queue.add((POD.name, *key_of(thing)))
        elif not is_ended(thing) and uid not in self._bugs:
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
        if pod.is_gone:
            shutil.rmtree(pod.folder, ignore_errors=True)
        elif not task.cancelled() and (error := task.exception()):
            _log.error("pod %s/%s: a bug ended it", *pod.key, exc_info=error)
            self._bugs[pod.uid] = _line_of(error)
            self._queue.add((POD.name, *pod.key))

    async def _work(self, host: Host) -> None:
        while True:
            key = await self._queue.get()
            kind, namespace, name = key
            reconcile = _BY_NAME.get(kind, self._settle)
            try:
                # As a value: a bug in the pass of one object is no reason to stop all others.
                (outcome,) = await asyncio.gather(reconcile(host, namespace, name), return_exceptions=True)
                self._passed(key, outcome)
            finally:
                self._queue.done(key)

    def _passed(self, key: Key, outcome: float | BaseException | None) -> None:
        match outcome:
            case NotFoundError():
                self._queue.forget(key)
            case ConflictError():  # it has changed, or gone, since it was read
                self._queue.retry(key)
            case InvalidError():
                _log.warning("%s %s/%s: %s", *key, outcome)
                self._queue.forget(key)
            case MeshError():
                _log.warning("%s %s/%s: %s", *key, outcome, extra={"reason": outcome.reason})
                self._queue.retry(key)
            case BaseException():
                _log.error("%s %s/%s: a bug in its pass", *key, exc_info=outcome)
                self._queue.retry(key)
            case _:
                self._queue.forget(key)
                if outcome is not None:
                    self._queue.add_after(key, min(outcome, _LONGEST_WAIT))

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(self._limits.log_seconds)
            for pod in list(self._pods.values()):
                await pod.bound_logs()

    async def _settle(self, host: Host, namespace: str, name: str) -> None:
        """Lets a pod go that is to be deleted and does not run, and fails one that cannot."""
        pod = await host.cluster.get(POD, namespace, name)
        if pod["metadata"]["uid"] in self._pods:
            return
        if is_deleted(pod):
            return await release(host, (namespace, name), pod["metadata"]["uid"])
        if bug := self._bugs.get(pod["metadata"]["uid"]):
            return await write_status(self._cluster, POD, pod, _status_of_bug(pod, bug))
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


def _status_of_bug(pod: Object, message: str) -> Object:
    """A pod that a bug of ours has ended waits, lest it is made again and again; one that is never restarted
    has failed."""
    if pod["spec"].get("restartPolicy") == "Never":
        return {"phase": "Failed", "reason": _BUG, "message": message}
    waiting = {"waiting": {"reason": _BUG, "message": message}}
    containers = [
        {"name": each["name"], "image": each.get("image", ""), "imageID": ""}
        | {"ready": False, "restartCount": 0, "state": waiting}
        for each in pod["spec"]["containers"]
    ]
    return {"phase": "Pending", "containerStatuses": containers}


def _line_of(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_MESSAGE]
