"""Scaling by a scaler, over mTLS on loopback: what it does to Deployments, and what it says of itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.cluster.kinds import DEPLOYMENT, NAMESPACE, SCALED_OBJECT
from libs.cluster.local import LocalCluster, open_local
from libs.errors import NotFoundError
from libs.mesh import SCALER
from libs.rpc.boundary import Limits
from libs.rpc.client import dial
from libs.testing.mesh import Mesh, mesh
from services.plane.autoscaling import autoscaling
from services.plane.autoscaling.autoscaler import Followers, Means
from services.scaler.demand import Demand
from services.scaler.picture import Picture
from services.scaler.server import Scaler

OPERATOR = "agentctl-operator"


@dataclass
class World:
    """A home with a scaler whose demand a test sets."""

    mesh: Mesh
    cluster: LocalCluster
    now: float = 100.0
    said: list[str] = field(default_factory=list)
    address: str = ""
    picture: Picture = field(init=False)

    def __post_init__(self) -> None:
        self.picture = Picture(lambda: self.now)
        self.picture.replace({})

    def demands(self, ready: int, queue: str = "demo/docs", **more: Any) -> None:
        self.picture.update({queue: Demand(ready=ready, **more)})

    @asynccontextmanager
    async def scaler(self, port: int = 0):
        """A scaler that serves, and stops at once."""
        servicer = Scaler(self.picture)

        def register(server: Any) -> None:
            pb_grpc.add_ExternalScalerServicer_to_server(servicer, server)

        limits = Limits(drain_seconds=0.0)
        serves = self.mesh.serve(
            register, SCALER, port=port, front="grpcio", limits=limits, on_drain=[servicer.drain]
        )
        async with serves as served:
            self.address = served.address
            yield int(served.address.rpartition(":")[2])

    def scaling(self, **options: Any):
        """The autoscaler, in a hurry."""

        def say(name: str, event: str) -> None:
            self.said.append(f"{name} {event}")

        identity = self.mesh.identity("administrator")
        return autoscaling(self.cluster, identity, self.address, say, **{"look_seconds": 0.02} | options)

    async def deployment(self, name: str = "docs", namespace: str = "demo", **spec: Any) -> None:
        """As the operator applies it: without replicas unless they are said."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        await self.cluster.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
            },
            OPERATOR,
        )

    async def scaled_object(
        self, name: str = "docs", namespace: str = "demo", trigger: Any = None, **spec: Any
    ) -> None:
        """As the operator makes it, with a cooldown of nothing unless it is said."""
        cooldown = spec.pop("cooldownPeriod", 0)
        metadata = {"scalerAddress": self.address, "target": "1", **(trigger or {})}
        behavior = {
            "scaleDown": {"stabilizationWindowSeconds": cooldown},
            "scaleUp": {"policies": [{"type": "Pods", "value": 10, "periodSeconds": 15}]},
        }
        authentication = {"name": "agentctl-scaler", "kind": "ClusterTriggerAuthentication"}
        await self.cluster.apply(
            {
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "ScaledObject",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "scaleTargetRef": {"name": name},
                    "minReplicaCount": 0,
                    "maxReplicaCount": 10,
                    "pollingInterval": 30,
                    "cooldownPeriod": cooldown,
                    "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
                    "triggers": [
                        {"type": "external-push", "metadata": metadata, "authenticationRef": authentication}
                    ],
                    **spec,
                },
            },
            OPERATOR,
        )

    async def replicas(self, name: str = "docs", namespace: str = "demo") -> Any:
        return (await self.cluster.get(DEPLOYMENT, namespace, name))["spec"].get("replicas")

    async def status(self, name: str = "docs") -> dict[str, Any]:
        return (await self.cluster.get(SCALED_OBJECT, "demo", name)).get("status") or {}

    async def conditions(self, name: str = "docs") -> dict[str, tuple[str, str]]:
        found = (await self.status(name)).get("conditions", ())
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    async def becomes(self, wanted: int, name: str = "docs", namespace: str = "demo") -> None:
        async def is_so() -> Any:
            return await self.replicas(name, namespace) == wanted

        await until(is_so)

    async def is_ready(self, *wanted: str, name: str = "docs") -> None:
        async def is_so() -> bool:
            return (await self.conditions(name)).get("Ready") == wanted

        await until(is_so)


async def until(look) -> None:
    async with asyncio.timeout(60):
        while not await look():  # noqa: ASYNC110  (the home is looked at from outside)
            await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path):
    with mesh(tmp_path) as certified:
        async with open_local(tmp_path / "objects") as cluster:
            for name in ("demo", "other"):
                await cluster.create({"apiVersion": "v1", "kind": NAMESPACE.name, "metadata": {"name": name}})
            yield World(certified, cluster)


@pytest.fixture
async def scaled(world):
    """The world, with a scaler and an autoscaler over it."""
    async with world.scaler(), world.scaling():
        yield world


async def test_from_zero_to_what_is_needed_and_back(scaled):
    await scaled.deployment(replicas=0)
    await scaled.scaled_object()
    await scaled.is_ready("True", "Scaling")
    assert await scaled.replicas() == 0
    scaled.demands(3)
    await scaled.becomes(3)
    conditions = await scaled.conditions()
    assert conditions["Fallback"] == ("False", "NoFallback")

    async def is_active() -> Any:
        return (await scaled.conditions())["Active"] == ("True", "Active")

    await until(is_active)
    assert (await scaled.status())["lastActiveTime"].endswith("Z")
    scaled.demands(25)
    await scaled.becomes(10)
    scaled.demands(0, leased=2)
    await scaled.becomes(2)
    scaled.demands(0)
    await scaled.becomes(0)
    assert scaled.said[0] == "demo/docs scaled from 0 to 1"
    assert scaled.said[-1] == "demo/docs scaled from 2 to 0"


async def test_the_operator_that_says_no_replicas_leaves_ours(scaled):
    await scaled.deployment(replicas=2)
    partial = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 2}}
    metadata = {"metadata": {"name": "docs", "namespace": "demo"}}
    await scaled.cluster.apply(partial | metadata, "agentctl-replicas")
    await scaled.deployment()
    assert await scaled.replicas() == 2
    scaled.demands(5)
    await scaled.scaled_object()
    await scaled.becomes(5)
    await scaled.deployment(minReadySeconds=1)
    assert await scaled.replicas() == 5


async def test_the_trigger_reaches_the_scaler_as_it_is(scaled):
    await scaled.deployment(replicas=0)
    scaled.demands(8, "demo/papers", ready_since=40.0)
    await scaled.scaled_object(trigger={"target": "4", "queue": "papers"})
    await scaled.becomes(2)
    await scaled.scaled_object(trigger={"target": "4", "queue": "papers", "targetAge": "20s"})
    await scaled.becomes(3)
    await scaled.scaled_object(trigger={"target": "none"})
    await scaled.is_ready("False", "ScalerFailed")
    assert "scalerMetadata.target" in (await scaled.status())["conditions"][0]["message"]


async def test_fleets_of_the_same_name_do_not_meet(scaled):
    for namespace in ("demo", "other"):
        await scaled.deployment(namespace=namespace, replicas=0)
        await scaled.scaled_object(namespace=namespace)
    scaled.demands(2)
    scaled.demands(4, "other/docs")
    await scaled.becomes(2)
    await scaled.becomes(4, namespace="other")
    assert await scaled.replicas() == 2


async def test_replicas_stay_while_the_demand_is_not_known(scaled):
    await scaled.deployment(replicas=0)
    await scaled.scaled_object()
    scaled.demands(3)
    await scaled.becomes(3)
    scaled.now += 60  # without news from coordination
    await scaled.is_ready("False", "ScalerFailed")
    assert (await scaled.conditions())["Active"] == ("Unknown", "Unknown")
    assert await scaled.replicas() == 3
    scaled.demands(1)
    await scaled.is_ready("True", "Scaling")
    await scaled.becomes(1)


async def test_a_fallback_counts_while_the_demand_is_not_known(scaled):
    scaled.now += 60
    await scaled.deployment(replicas=0)
    await scaled.scaled_object(
        fallback={"failureThreshold": 3, "replicas": 4, "behavior": "currentReplicasIfHigher"}
    )
    await scaled.becomes(4)

    async def falls_back() -> Any:
        return (await scaled.conditions())["Fallback"] == ("True", "FallbackInUse")

    await until(falls_back)
    scaled.demands(1)
    await scaled.becomes(1)


async def test_a_scaler_that_went_away_is_found_again(world):
    async with AsyncExitStack() as stack:
        async with world.scaler() as port:
            await stack.enter_async_context(world.scaling())
            await world.deployment(replicas=0)
            await world.scaled_object()
            world.demands(3)
            await world.becomes(3)
        await world.is_ready("False", "ScalerFailed")
        assert await world.replicas() == 3
        world.demands(0)
        async with world.scaler(port):
            await world.becomes(0)
            world.demands(2)
            await world.becomes(2)
            await stack.aclose()


async def test_one_that_is_deleted_is_scaled_no_more(scaled):
    for name in ("docs", "more"):
        await scaled.deployment(name, replicas=0)
        await scaled.scaled_object(name, trigger={"queue": "docs"})
    scaled.demands(3)
    await scaled.becomes(3)
    await scaled.cluster.delete(SCALED_OBJECT, "demo", "docs")
    await scaled.deployment(replicas=7)
    scaled.demands(5)
    await scaled.becomes(5, "more")
    assert await scaled.replicas() == 7


async def test_one_that_is_made_anew_unseen_is_followed_as_it_is_now(world):
    async with (
        world.scaler(),
        dial(SCALER, world.address, world.mesh.identity("administrator"), own_connection=True) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        means = Means(world.cluster, pb_grpc.ExternalScalerStub(channel), lambda *_: None, 0.02)
        followers = Followers(means, tasks, 5)
        await world.deployment(replicas=0)
        await world.scaled_object()
        old = await world.cluster.get(SCALED_OBJECT, "demo", "docs")
        followers.see(None, old)
        world.demands(8)
        await world.becomes(8)
        await world.cluster.delete(SCALED_OBJECT, "demo", "docs")
        await world.scaled_object(maxReplicaCount=5)
        new = await world.cluster.get(SCALED_OBJECT, "demo", "docs")
        assert new["metadata"]["generation"] == old["metadata"]["generation"]
        followers.see(old, new)
        await world.becomes(5)
        followers.stop()


async def test_what_is_changed_counts_at_once(scaled):
    await scaled.deployment(replicas=0)
    await scaled.scaled_object(cooldownPeriod=3600)
    scaled.demands(8)
    await scaled.becomes(8)
    await scaled.scaled_object(cooldownPeriod=3600, maxReplicaCount=5)
    await scaled.becomes(5)
    scaled.demands(0)
    await scaled.scaled_object(cooldownPeriod=0, minReplicaCount=2)
    await scaled.becomes(2)


async def test_who_starts_again_goes_on_and_waits_for_a_whole_cooldown(world):
    async with world.scaler():
        async with world.scaling():
            await world.deployment(replicas=0)
            await world.scaled_object(cooldownPeriod=3600)
            world.demands(3)
            await world.becomes(3)
        active = (await world.status())["lastActiveTime"]
        world.demands(0)
        async with world.scaling():

            async def is_inactive() -> Any:
                return (await world.conditions())["Active"] == ("False", "Inactive")

            await until(is_inactive)
            assert await world.replicas() == 3
            assert (await world.status())["lastActiveTime"] == active
            world.demands(4)
            await world.becomes(4)


async def test_a_deployment_that_is_not_there_is_not_made(scaled):
    scaled.demands(3)
    await scaled.scaled_object()
    await scaled.is_ready("False", "NoTarget")
    with pytest.raises(NotFoundError):
        await scaled.replicas()
    await scaled.deployment(replicas=0)
    await scaled.becomes(3)
    await scaled.is_ready("True", "Scaling")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"triggers": []}, "length >= 1"),
        ({"triggers": [{"type": "cron", "metadata": {}}]}, "cron"),
        ({"triggers": [{"type": "external-push"}] * 2}, "length <= 1"),
        ({"triggers": [{"type": "external-push", "metadata": {"target": 1}}]}, "Expected `str`"),
        ({"scaleTargetRef": {"name": "docs", "kind": "StatefulSet"}}, "StatefulSet"),
        ({"idleReplicaCount": 0}, "idleReplicaCount"),
        ({"minReplicaCount": 11}, "minReplicaCount"),
        ({"maxReplicaCount": "many"}, "maxReplicaCount"),
    ],
)
async def test_one_that_cannot_be_read_says_why_and_scales_nothing(scaled, spec, why):
    await scaled.deployment(replicas=1)
    scaled.demands(3)
    await scaled.scaled_object(**spec)
    await scaled.is_ready("False", "Invalid")
    assert why in (await scaled.status())["conditions"][0]["message"]
    assert await scaled.replicas() == 1


async def test_one_too_many_waits_until_another_is_gone(world):
    async with world.scaler(), world.scaling(most=1):
        for name in ("docs", "more"):
            await world.deployment(name, replicas=0)
            await world.scaled_object(name)
        world.demands(2, "demo/more")
        await world.is_ready("False", "TooMany", name="more")
        assert await world.replicas("more") == 0
        await world.cluster.delete(SCALED_OBJECT, "demo", "docs")
        await world.becomes(2, "more")
