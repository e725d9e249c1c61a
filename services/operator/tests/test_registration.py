"""The APIService is there while the apiserver answers, and the webhooks trust our roots."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
import yaml

from libs.cluster import Object, UnauthorisedError
from libs.cluster.kinds import (
    API_SERVICE,
    CLUSTER_ROLE,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from libs.errors import NotFoundError, UnavailableError
from services.operator.operating import operating
from services.operator.registration import AWAY_SECONDS, NAME, OWNER, WEBHOOKS, Registration

from .world import Counting, World

MANIFESTS = Path(__file__).parents[3] / "k8s/base/admission/webhooks"


@dataclass
class Bench:
    """A registration in a world where the test is the API server, and time stands until it says."""

    world: World
    now: float = 1000.0
    roots: str = "root 1"
    cluster: Counting = field(init=False)
    registration: Registration = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = Counting(self.world.cluster)
        self.registration = Registration(
            self.cluster, self.world.system, lambda: self.roots, lambda: self.now
        )

    async def look(self, later: float = 0.0) -> list[str]:
        """One round after so many seconds; what it wrote."""
        self.now += later
        self.cluster.writes.clear()
        await self.registration.look()
        return self.cluster.writes

    async def endpoint(self, *, ready: bool) -> None:
        await self.world.cluster.apply({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": self.world.system, "name": "apiserver-x1",
                "labels": {"kubernetes.io/service-name": "apiserver"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
        }, "test")  # fmt: skip

    async def available(self, status: str) -> None:
        """What the API server says of the APIService."""
        conditions = [{"type": "Available", "status": status, "reason": "Test"}]
        thing = {"apiVersion": API_SERVICE.api_version, "kind": "APIService", "metadata": {"name": NAME}}
        await self.world.cluster.apply({**thing, "status": {"conditions": conditions}}, "test")

    async def found(self) -> Object:
        return await self.world.cluster.get(API_SERVICE, "", NAME)

    async def is_there(self) -> bool:
        try:
            await self.found()
        except NotFoundError:
            return False
        return True


@pytest.fixture
async def bench(local: World) -> Bench:
    role = {"apiVersion": CLUSTER_ROLE.api_version, "kind": CLUSTER_ROLE.name, "metadata": {"name": OWNER}}
    await local.cluster.create(role)
    return Bench(local)


async def test_it_is_registered_once_there_is_an_endpoint_that_is_ready(bench: Bench):
    assert await bench.look() == []
    await bench.endpoint(ready=False)
    assert await bench.look() == []
    await bench.endpoint(ready=True)
    assert await bench.look() == [f"apply APIService {NAME}"]
    found = await bench.found()
    assert found["spec"] == {
        "group": "management.agentctl.dev",
        "version": "v1alpha1",
        "groupPriorityMinimum": 1000,
        "versionPriority": 15,
        "service": {"namespace": bench.world.system, "name": "apiserver", "port": 443},
        "caBundle": b64encode(b"root 1").decode(),
    }
    role = await bench.world.cluster.get(CLUSTER_ROLE, "", OWNER)
    [owner] = found["metadata"]["ownerReferences"]
    assert owner["uid"] == role["metadata"]["uid"]


async def test_what_is_right_is_not_written_again(bench: Bench):
    await bench.endpoint(ready=True)
    await bench.look()
    await bench.available("True")
    assert await bench.look(100) == []


async def test_it_is_withdrawn_when_it_has_been_away_for_a_while_and_comes_back_at_once(bench: Bench):
    await bench.endpoint(ready=True)
    await bench.look()
    await bench.available("True")
    await bench.look()
    await bench.available("False")
    await bench.endpoint(ready=False)
    assert await bench.look(100) == []
    assert await bench.look(AWAY_SECONDS - 1) == []
    assert await bench.look(1) == [f"delete APIService {NAME}"]
    assert await bench.look(1) == []
    await bench.endpoint(ready=True)
    assert await bench.look(1) == [f"apply APIService {NAME}"]


async def test_a_moment_of_absence_is_forgiven(bench: Bench):
    await bench.endpoint(ready=True)
    await bench.look()
    for status, later in (
        ("False", 0),
        ("True", AWAY_SECONDS - 1),
        ("False", 1),
        ("False", AWAY_SECONDS - 1),
    ):
        await bench.available(status)
        await bench.look(later)
        assert await bench.is_there()


async def test_what_never_becomes_available_is_tried_less_and_less(bench: Bench):
    """Its pod is ready, and the API server cannot reach it."""
    await bench.endpoint(ready=True)
    absent = []
    for _ in range(8):
        waited = 0
        while not await bench.is_there():
            await bench.look(1)
            waited += 1
        absent.append(waited)
        await bench.look()
        await bench.look(AWAY_SECONDS)
        assert not await bench.is_there()
    assert absent == [1, 1, 15, 30, 60, 120, 240, 300]


async def test_a_root_that_rotates_is_followed_everywhere(bench: Bench):
    await install(bench)
    await bench.endpoint(ready=True)
    await bench.look()
    bench.roots = "root 1, root 2"
    assert len(await bench.look()) == 3
    expected = b64encode(b"root 1, root 2").decode()
    assert (await bench.found())["spec"]["caBundle"] == expected
    assert await bundles(bench) == [expected, expected]


async def test_webhooks_trust_our_roots_and_are_otherwise_as_the_manifest_says(bench: Bench):
    before = await install(bench)
    assert len(await bench.look()) == 2
    assert await bundles(bench) == [b64encode(b"root 1").decode()] * 2
    for thing, manifest in zip(await installed(bench), before, strict=True):
        for webhook in thing["webhooks"]:
            del webhook["clientConfig"]["caBundle"]
        assert thing["webhooks"] == manifest["webhooks"]
    assert await bench.look() == []
    await install(bench)
    assert await bench.look() == [], "applying the manifests again takes nothing away"


async def test_what_belongs_to_another_system_namespace_is_left_alone(bench: Bench):
    await install(bench)
    await bench.endpoint(ready=True)
    await bench.look()
    elsewhere = Registration(bench.cluster, "another-system", lambda: "root X", lambda: bench.now)
    bench.cluster.writes.clear()
    for _ in range(3):
        await elsewhere.look()
        bench.now += AWAY_SECONDS
    assert bench.cluster.writes == []


async def test_without_the_apiservers_role_nothing_is_registered(local: World):
    bench = Bench(local)
    await bench.endpoint(ready=True)
    assert await bench.look() == []


@pytest.mark.parametrize(
    "kind", [API_SERVICE, VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS], ids=lambda kind: kind.name
)
async def test_what_is_refused_keeps_nothing_else_from_being_done(bench: Bench, kind: Kind):
    class Refusing(Counting):
        def before(self, verb, of, namespace, name):
            if of is kind:
                raise UnauthorisedError("forbidden")
            super().before(verb, of, namespace, name)

    await install(bench)
    await bench.endpoint(ready=True)
    cluster = Refusing(bench.world.cluster)
    with pytest.raises(UnauthorisedError):
        await Registration(cluster, bench.world.system, lambda: "root").look()
    assert len(cluster.writes) == 2


async def test_an_api_server_that_does_not_answer_is_asked_again_and_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    class Flaky(Counting):
        failures = 2

        async def get(self, kind, namespace, name):
            if kind is API_SERVICE and self.failures:
                self.failures -= 1
                raise UnavailableError("no answer")
            return await super().get(kind, namespace, name)

    async def sleep(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    await bench.endpoint(ready=True)
    registration = Registration(Flaky(bench.cluster), bench.world.system, lambda: "root", sleep=sleep)
    async with anyio.create_task_group() as group:
        group.start_soon(registration.run)
        await bench.world.until(bench.is_there)
        group.cancel_scope.cancel()
    assert caplog.text.count("registration: no answer") == 1


async def test_the_leader_registers_with_the_roots_that_it_publishes(bench: Bench, tmp_path: Path):
    await install(bench)
    await bench.endpoint(ready=True)
    tls = tmp_path / "tls"
    tls.mkdir(mode=0o700)
    settings = replace(
        bench.world.settings(), tls_dir=tls, port=0, identity_port=0, coordination_address="", registers=True
    )
    async with operating(settings, bench.world.cluster):
        await bench.world.until(bench.is_there)
        root = b64encode((tls / "ca.crt").read_bytes()).decode()
        assert (await bench.found())["spec"]["caBundle"] == root

        async def is_trusted() -> bool:
            return await bundles(bench) == [root, root]

        await bench.world.until(is_trusted)


async def install(bench: Bench) -> list[Object]:
    """As kubectl does."""
    manifests = [
        yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text()) for name in ("validating", "mutating")
    ]
    for manifest in manifests:
        await bench.world.cluster.apply(manifest, "kubectl")
    return manifests


async def installed(bench: Bench) -> list[Object]:
    kinds = (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS)
    return [await bench.world.cluster.get(kind, "", WEBHOOKS) for kind in kinds]


async def bundles(bench: Bench) -> list[str]:
    things = await installed(bench)
    return [each["clientConfig"].get("caBundle", "") for thing in things for each in thing["webhooks"]]
