"""Follows the ScaledObjects of the home, and scales what they name."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from externalscaler import externalscaler_pb2 as pb
from externalscaler.externalscaler_pb2_grpc import ExternalScalerStub
from libs.cluster import Cluster, Object, key_of
from libs.cluster.informer import Informer
from libs.cluster.kinds import DEPLOYMENT, SCALED_OBJECT, Kind
from libs.errors import InvalidError, MeshError, NotFoundError, UnimplementedError
from libs.identity import Identity
from libs.mesh import SCALER
from libs.rpc.client import dial

from ..news import Say
from .hpa import Decisions, replicas_for
from .scaled_object import ScaledObject

MANAGER = "keda-operator"
"""Whose field spec.replicas is: as with KEDA."""

MOST = 1_000
"""ScaledObjects that are followed at a time; the others wait."""

SCALING = "Scaling"
"""The reason of one that is Ready."""

_CALL_SECONDS = 5.0
_RECONNECTS = (0.1, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before each, of a stream that says nothing

_log = logging.getLogger(__name__)


@asynccontextmanager
async def autoscaling(
    cluster: Cluster,
    identity: Identity,
    scaler: str,
    say: Say,
    *,
    look_seconds: float = 1.0,
    most: int = MOST,
) -> AsyncIterator[None]:
    """Scales while the block runs, by the scaler at that address, over one connection; `say` is told."""
    async with (
        dial(SCALER, scaler, identity, timeout=_CALL_SECONDS, own_connection=True) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        followers = Followers(Means(cluster, ExternalScalerStub(channel), say, look_seconds), tasks, most)
        informer = Informer(cluster, SCALED_OBJECT)
        informer.subscribe(followers.see)
        following = tasks.create_task(informer.run())
        try:
            yield
        finally:
            following.cancel()
            followers.stop()


@dataclass(frozen=True)
class Means:
    """What each follower works with."""

    cluster: Cluster
    stub: Any
    say: Say
    look_seconds: float
    """Between two looks while anything is going on."""


class Followers:
    """One task for each ScaledObject, and a new one when what it says changes."""

    def __init__(self, means: Means, tasks: asyncio.TaskGroup, most: int) -> None:
        self._means, self._group = means, tasks
        self._places = asyncio.Semaphore(most)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def see(self, old: Object | None, new: Object | None) -> None:
        """As an informer tells it."""
        if old and new and all(old["metadata"][key] == new["metadata"][key] for key in ("uid", "generation")):
            return
        before = self._tasks.pop(key_of(old), None) if old else None
        if before:
            before.cancel()
        if new:
            self._tasks[key_of(new)] = self._group.create_task(self._follow(new, before))

    def stop(self) -> None:
        """Ends them all."""
        for task in self._tasks.values():
            task.cancel()

    async def _follow(self, thing: Object, before: asyncio.Task[None] | None) -> None:
        if before:
            await asyncio.wait((before,))
        report = Report(self._means.cluster, thing)
        if self._places.locked():
            await report.say("TooMany", "so many ScaledObjects are followed that this one has to wait")
        async with self._places:
            try:
                scaled = ScaledObject.of(thing)
            except InvalidError as error:
                await report.say("Invalid", str(error))
            else:
                await Follower(self._means, scaled, report).run()


class Report:
    """The status of a ScaledObject, written when it changes, and now and then while it is active."""

    def __init__(self, cluster: Cluster, thing: Object) -> None:
        self._cluster, self._thing = cluster, thing
        self._said: Object | None = None
        self._active_at = 0.0

    async def say(
        self,
        reason: str = SCALING,
        message: str = "",
        *,
        is_active: bool | None = None,
        falls_back: bool = False,
        every: float = 30.0,
    ) -> None:
        """`reason` is why it is not ready, unless that is SCALING. It never raises: what is not written
        now is written with the next look."""
        activity = {True: ("True", "Active"), False: ("False", "Inactive"), None: ("Unknown", "Unknown")}
        conditions = [
            _condition("Ready", "True" if reason == SCALING else "False", reason, message),
            _condition("Active", *activity[is_active]),
            _condition("Fallback", *(("True", "FallbackInUse") if falls_back else ("False", "NoFallback"))),
        ]
        now, said = time.time(), self._said or {}
        if said.get("conditions") == conditions and not (is_active and now - self._active_at >= every):
            return
        status = said | {"conditions": conditions}
        if is_active:
            status["lastActiveTime"] = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        elif self._said is None and (before := (self._thing.get("status") or {}).get("lastActiveTime")):
            status["lastActiveTime"] = before
        try:
            document = _partial(SCALED_OBJECT, self._thing) | {"status": status}
            await self._cluster.apply(document, MANAGER, subresource="status")
        except MeshError as error:
            _log.warning("the status of ScaledObject %s: %s", "/".join(key_of(self._thing)), error)
        else:
            self._said, self._active_at = status, now if is_active else self._active_at


class Follower:
    """Scales by one ScaledObject until cancelled."""

    def __init__(self, means: Means, scaled: ScaledObject, report: Report) -> None:
        self._means, self._scaled, self._report = means, scaled, report
        self._stub = means.stub
        self._ref = pb.ScaledObjectRef(
            name=scaled.name, namespace=scaled.namespace, scalerMetadata=scaled.metadata
        )
        self._decisions: Decisions | None = None
        self._pushed: bool | None = None
        self._targets: dict[str, float] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Looks each second while anything is going on, else when the scaler says so, or at KEDA's pace."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(self._stub.StreamIsActive, self._take_activity))
            tasks.create_task(self._keep(self._stub.StreamMetricSpec, self._take_specs))
            while True:
                self._wake.clear()
                is_quiet = await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        self._scaled.polling if is_quiet else self._means.look_seconds
                    ):
                        await self._wake.wait()

    async def _keep(self, method: Callable[[Any], Any], take: Callable[[Any], None]) -> None:
        """Takes what the stream says, without end; not if the scaler does not have it."""
        failures = 0
        while True:
            try:
                async for message in method(self._ref):
                    failures = 0
                    take(message)
            except UnimplementedError:
                return
            except MeshError as error:
                _log.info("ScaledObject %s: %s", self._scaled.name, error, extra={"reason": error.reason})
            self._wake.set()
            await asyncio.sleep(_RECONNECTS[failures] * random.uniform(0.8, 1))
            failures = min(failures + 1, len(_RECONNECTS) - 1)

    def _take_activity(self, message: pb.IsActiveResponse) -> None:
        self._pushed = message.result
        self._wake.set()

    def _take_specs(self, message: pb.GetMetricSpecResponse) -> None:
        self._targets = {
            each.metricName: each.targetSizeFloat or float(each.targetSize) for each in message.metricSpecs
        }

    async def _look(self) -> bool:
        """Asks and scales; whether nothing is going on."""
        namespace, name = self._scaled.namespace, self._scaled.target
        try:
            target = await self._means.cluster.get(DEPLOYMENT, namespace, name)
            return await self._decide(target)
        except NotFoundError:
            await self._report.say("NoTarget", f"there is no Deployment {name}")
        except MeshError as error:  # of the home: the scaler's are answers
            await self._report.say("NotScaled", str(error))
        return False

    async def _decide(self, target: Object) -> bool:
        policy, now = self._scaled.policy, time.monotonic()
        replicas: int = target["spec"].get("replicas", 1)
        decisions = self._decisions = self._decisions or Decisions(policy, now, replicas)
        if self._pushed and replicas == 0:
            await self._scale(target, replicas, policy.floor)
            replicas = policy.floor
        is_active: bool | None = None
        reason, message = SCALING, ""
        try:
            is_active, needed = await self._is_active(), await self._needed()
        except MeshError as error:
            reason, message = "ScalerFailed", str(error)
            wanted = decisions.unknown(now, replicas)
        else:
            wanted = decisions.known(now, replicas, is_active, needed)
        if wanted != replicas:
            await self._scale(target, replicas, wanted)
        await self._report.say(
            reason, message, is_active=is_active, falls_back=decisions.falls_back, every=self._scaled.polling
        )
        return is_active is False and reason == SCALING and wanted <= policy.minimum

    async def _is_active(self) -> bool:
        pushed, self._pushed = self._pushed, None
        if pushed is None:
            pushed = (await self._stub.IsActive(self._ref)).result
        return bool(pushed)

    async def _needed(self) -> int:
        if not self._targets:
            self._take_specs(await self._stub.GetMetricSpec(self._ref))
        metrics: list[tuple[float, float]] = []
        for name, target in self._targets.items():
            request = pb.GetMetricsRequest(scaledObjectRef=self._ref, metricName=name)
            values = (await self._stub.GetMetrics(request)).metricValues
            if target <= 0 or not values:
                raise InvalidError(f"of {name} the scaler says nothing by which one can count")
            metrics.append((sum(each.metricValueFloat or each.metricValue for each in values), target))
        if not metrics:
            raise InvalidError("the scaler has no metric")
        return replicas_for(metrics)

    async def _scale(self, target: Object, before: int, replicas: int) -> None:
        """This one field, of this very Deployment: applied to none, it would make one."""
        await self._means.cluster.apply(
            _partial(DEPLOYMENT, target) | {"spec": {"replicas": replicas}}, MANAGER
        )
        self._means.say("/".join(key_of(target)), f"scaled from {before} to {replicas}")


def _partial(kind: Kind, thing: Object) -> Object:
    metadata = {key: thing["metadata"][key] for key in ("namespace", "name", "uid")}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}


def _condition(type: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": type, "status": status, "reason": reason} | ({"message": message} if message else {})
