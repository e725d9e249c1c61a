"""The scaler and a real coordination as processes, asked as KEDA asks: plain gRPC on one connection.

The client knows KEDA's contract and docs/scaler.md, and nothing of the scaler.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.identity import Identity
from libs.work import Work, connect
from loadgen.verify.proxy import Proxy

from .fleet import DOMAIN, QUEUE, Fleet, Process, fleet, free_port, spawn, until

NAMESPACE, _, NAME = QUEUE.partition("/")
DOCS = pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE, scalerMetadata={"target": "2"})
OTHERS = pb.ScaledObjectRef(name=NAME, namespace="other", scalerMetadata={"target": "2"})
ITEMS = "agentctl-items"
AGE = "agentctl-oldest-ready-age"
OPEN = 'agentctl_scaler_streams{method="StreamIsActive"}'


@dataclass
class Scaled:
    """A coordination, a scaler, and KEDA's connection to it."""

    fleet: Fleet
    scaler: Process
    port: int
    stub: Any
    _stack: AsyncExitStack

    async def caller(self, role: str, **how: Any) -> Any:
        """Somebody else's stub, on a connection of its own; `how` is of the certificate."""
        folder = self.fleet.folder / f"caller-{role.replace('/', '-')}"
        identity = self.fleet.authority.issue(f"spiffe://{DOMAIN}/{role}", folder, **how)
        channel = await self._stack.enter_async_context(_connection(self.port, identity))
        return pb_grpc.ExternalScalerStub(channel)

    async def another(self) -> Any:
        """KEDA's stub of a second replica, and its process."""
        folder = self.fleet.folder / "another"
        folder.mkdir()
        scaler, port = await _scaler(self._stack, self.fleet, folder)
        identity = self.fleet.authority.issue(f"spiffe://{DOMAIN}/cp/keda", folder / "keda")
        channel = await self._stack.enter_async_context(_connection(port, identity))
        return pb_grpc.ExternalScalerStub(channel), scaler

    def stream(self, ref: pb.ScaledObjectRef = DOCS) -> Any:
        return self.stub.StreamIsActive(ref)

    async def restart_coordination(self, settings: Mapping[str, str]) -> None:
        """One that ended is started anew, where it was."""
        made = self.fleet
        environment = {
            "COORDINATION_PORT": made.coordination_address.rpartition(":")[2],
            "COORDINATION_METRICS_PORT": str(made.coordination.port),
            "AGENTCTL_TLS_DIR": str(made.folder / "coordination"),
            **settings,
        }
        folder = made.folder / "anew"
        folder.mkdir()
        made.coordination = await spawn(
            self._stack, folder, "coordination", made.coordination.port, environment
        )
        await made.coordination.answers("/readyz")

    async def items(self, ref: pb.ScaledObjectRef = DOCS) -> float:
        request = pb.GetMetricsRequest(scaledObjectRef=ref, metricName=ITEMS)
        [value] = (await self.stub.GetMetrics(request)).metricValues
        return float(value.metricValueFloat)

    async def is_unknown(self) -> None:
        """Returns when it says that it does not know."""

        async def look() -> bool:
            try:
                await self.stub.IsActive(DOCS)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

        await until(look)

    async def has(self, items: float) -> None:
        """Returns when it says so many."""

        async def look() -> bool:
            return await self.items() == items

        await until(look)


async def said(stream: Any) -> bool:
    """The next message."""
    async with asyncio.timeout(30):
        return bool((await stream.read()).result)


@asynccontextmanager
async def scaled(folder: Path, **settings: str) -> AsyncIterator[Scaled]:
    async with fleet(folder, **settings) as made, AsyncExitStack() as stack:
        scaler, port = await _scaler(stack, made, folder)
        identity = made.authority.issue(f"spiffe://{DOMAIN}/cp/keda", folder / "keda")
        channel = await stack.enter_async_context(_connection(port, identity))
        yield Scaled(made, scaler, port, pb_grpc.ExternalScalerStub(channel), stack)


async def _scaler(stack: AsyncExitStack, made: Fleet, folder: Path) -> tuple[Process, int]:
    names = ("localhost",)
    own = made.authority.issue(f"spiffe://{DOMAIN}/cp/scaler", folder / "scaler", dns_names=names)
    port, plain = free_port(), free_port()
    environment = {
        "SCALER_PORT": str(port),
        "SCALER_METRICS_PORT": str(plain),
        "AGENTCTL_COORDINATION_ADDRESS": made.coordination_address,
        "AGENTCTL_TLS_DIR": str(own.folder),
    }
    scaler = await spawn(stack, folder, "scaler", plain, environment)
    await scaler.answers("/readyz")
    return scaler, port


def _connection(port: int, identity: Identity) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
    )
    service_config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    return grpc.aio.secure_channel(
        f"localhost:{port}", credentials, [("grpc.service_config", service_config)]
    )


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Scaled]:
    async with scaled(tmp_path) as plane:
        yield plane


@pytest.fixture
def anew() -> Iterator[Path]:
    """A folder that others get into: a PostgreSQL that root starts runs as another user."""
    with tempfile.TemporaryDirectory(prefix="agentctl-scaler-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


async def test_an_item_is_pushed_counted_while_it_is_held_and_gone_when_it_is_done(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        ours, theirs = plane.stream(), plane.stream(OTHERS)
        assert [await said(ours), await said(theirs)] == [False, False]
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        assert await said(ours)
        assert await plane.items() == 1
        stub = plane.fleet.client.stub
        [grant] = (await stub.Claim(coordination_pb.ClaimRequest(queues=[QUEUE], request_id="a"))).grants
        await plane.has(1)
        assert (await plane.stub.IsActive(DOCS)).result
        ack = coordination_pb.Ack(item_id=grant.item_id, token=grant.token)
        await stub.Ack(coordination_pb.AckRequest(acks=[ack]))
        assert not await said(ours)
        assert await plane.items() == 0
        assert await plane.items(OTHERS) == 0
        other = plane.fleet.authority.issue(f"spiffe://{DOMAIN}/ns/other/user/tester", tmp_path / "other")
        async with connect(plane.fleet.coordination_address, other) as client:
            await client.submit(f"other/{NAME}", Work(b"b", content_type="text/plain"))
        assert await said(theirs)
        assert await plane.items() == 0


async def test_items_that_are_delayed_need_nobody(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        stream = plane.stream()
        assert not await said(stream)
        delayed = Work(b"a", content_type="text/plain", delay=timedelta(hours=1))
        await plane.fleet.client.submit(QUEUE, delayed)
        await plane.fleet.client.submit(QUEUE, Work(b"b", content_type="text/plain"))
        assert await said(stream)
        assert await plane.items() == 1


async def test_a_frozen_coordination_is_an_outage_and_not_zero(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        await plane.has(1)
        plane.fleet.coordination.signal(signal.SIGSTOP)
        try:
            await plane.is_unknown()
            await plane.scaler.answers("/readyz", 503)
            assert await plane.scaler.metric("agentctl_scaler_fresh") == 0
        finally:
            plane.fleet.coordination.signal(signal.SIGCONT)
        await plane.scaler.answers("/readyz")
        await plane.has(1)


async def test_a_coordination_that_died_is_an_outage_and_not_zero(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        await plane.has(1)
        stream = plane.stream()
        assert await said(stream)
        plane.fleet.coordination.signal(signal.SIGKILL)
        await plane.fleet.coordination.exit_code()
        await plane.is_unknown()
        reading = asyncio.ensure_future(stream.read())
        done, _ = await asyncio.wait({reading}, timeout=1)
        assert not done
        plane.scaler.signal(signal.SIGTERM)
        assert await reading is grpc.aio.EOF
        assert await plane.scaler.exit_code() == 0


def docs(**metadata: str) -> pb.ScaledObjectRef:
    """The trigger with this metadata."""
    theirs = {"scalerAddress": "scaler.agentctl-system.svc:7417", "enableTLS": "true", "unsafeSsl": "false"}
    return pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE, scalerMetadata={**theirs, **metadata})


def metrics(ref: pb.ScaledObjectRef, name: str = "") -> pb.GetMetricsRequest:
    return pb.GetMetricsRequest(scaledObjectRef=ref, metricName=name)


async def code(call: Any) -> grpc.StatusCode:
    """How a call ends, or the next message of a stream fails to come."""
    try:
        async with asyncio.timeout(30):
            await (call if isinstance(call, grpc.aio.UnaryUnaryCall) else call.read())
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_the_specs_and_values_of_a_trigger_have_both_fields_and_the_names_that_keda_asks_for(
    tmp_path: Path,
) -> None:
    async with scaled(tmp_path) as plane:
        both = docs(target="2.5", targetAge="1500ms")
        specs = await plane.stub.GetMetricSpec(both)
        assert [(each.metricName, each.targetSize, each.targetSizeFloat) for each in specs.metricSpecs] == [
            (ITEMS, 3, 2.5),
            (AGE, 2, 1.5),
        ]
        stream = plane.stub.StreamMetricSpec(both)
        assert await stream.read() == specs
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        await plane.has(1)
        values = (await plane.stub.GetMetrics(metrics(both))).metricValues
        assert [each.metricName for each in values] == [ITEMS, AGE]
        assert all(each.metricValue == math.ceil(each.metricValueFloat) for each in values)
        for name in (ITEMS, AGE):
            [value] = (await plane.stub.GetMetrics(metrics(both, name))).metricValues
            assert value.metricName == name
            assert value.metricValueFloat >= 0
        again = asyncio.ensure_future(stream.read())
        assert not (await asyncio.wait({again}, timeout=1))[0], "nothing has changed, so nothing is said"
        again.cancel()


WRONG: list[dict[str, str]] = [
    {"queue": "other/docs"},
    {"queue": ""},
    {"namespace": "other"},
    {"serverAddress": "http://example.com"},
    {"target": "0"},
    {"target": "-1"},
    {"target": "1e3"},
    {"target": "1000000001"},
    {"target": "nan"},
    {"targetAge": "5"},
    {"targetAge": "-5s"},
]


async def test_a_trigger_that_is_wrong_is_refused_by_every_method(one: Scaled) -> None:
    stub = one.stub
    for metadata in WRONG:
        wrong = docs(**metadata)
        calls = [stub.IsActive(wrong), stub.GetMetricSpec(wrong), stub.GetMetrics(metrics(wrong))]
        calls += [stub.StreamIsActive(wrong), stub.StreamMetricSpec(wrong)]
        assert {await code(call) for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}, metadata


async def test_a_metric_that_the_trigger_does_not_have_is_refused(one: Scaled) -> None:
    for name in (f"s0-{ITEMS}", AGE, "other", "x" * 5000):
        call = one.stub.GetMetrics(metrics(docs(), name))
        assert await code(call) is grpc.StatusCode.INVALID_ARGUMENT, name


async def test_nobody_but_keda_and_an_administrator_is_told(one: Scaled) -> None:
    for role in ("cp/gateway", "cp/operator", "ns/demo/user/tester", "ns/demo/agent/docs/pod/docs-0/uid"):
        stub = await one.caller(role)
        for call in (stub.IsActive(DOCS), stub.GetMetrics(metrics(DOCS)), stub.StreamIsActive(DOCS)):
            assert await code(call) is grpc.StatusCode.PERMISSION_DENIED, role


async def test_who_has_no_certificate_or_speaks_plainly_is_not_heard(one: Scaled) -> None:
    root = (one.fleet.folder / "keda" / "ca.crt").read_bytes()
    address = f"localhost:{one.port}"
    nameless = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root))
    async with nameless, grpc.aio.insecure_channel(address) as plain:
        for channel in (nameless, plain):
            call = pb_grpc.ExternalScalerStub(channel).IsActive(DOCS, timeout=20)
            assert await code(call) is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_ends_with_the_certificate_of_who_opened_it(one: Scaled) -> None:
    stub = await one.caller("user/short", lifetime=timedelta(seconds=4))
    stream = stub.StreamIsActive(DOCS)
    await said(stream)
    assert await code(stream) is grpc.StatusCode.UNAUTHENTICATED
    assert not (await one.stub.IsActive(DOCS)).result


async def test_two_triggers_of_one_name_are_answered_each_by_its_own_metadata(one: Scaled) -> None:
    await one.fleet.client.submit(f"{NAMESPACE}/mail", Work(b"a", content_type="text/plain"))

    async def look() -> bool:
        return bool((await one.stub.IsActive(docs(queue="mail"))).result)

    await until(look)
    assert not (await one.stub.IsActive(docs())).result
    assert [await said(one.stream(docs(queue="mail"))), await said(one.stream(docs()))] == [True, False]


async def test_two_replicas_say_the_same_and_one_goes_on_without_the_other(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        stub, process = await plane.another()
        streams = [plane.stream(), stub.StreamIsActive(DOCS)]
        assert [await said(each) for each in streams] == [False, False]
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        assert [await said(each) for each in streams] == [True, True]
        process.signal(signal.SIGTERM)
        assert await streams[1].read() is grpc.aio.EOF
        assert await process.exit_code() == 0
        assert await plane.items() == 1


async def test_a_coordination_that_was_started_anew_is_followed_and_keeps_its_items(anew: Path) -> None:
    settings = {"COORDINATION_STORE": "embedded", "COORDINATION_DATA_DIR": str(anew / "data")}
    async with scaled(anew, **settings) as plane:
        await plane.fleet.client.submit(QUEUE, Work(b"a", content_type="text/plain"))
        await plane.has(1)
        stream = plane.stream()
        assert await said(stream)
        plane.fleet.coordination.signal(signal.SIGKILL)
        await plane.fleet.coordination.exit_code()
        await plane.is_unknown()
        await plane.restart_coordination(settings)
        await plane.scaler.answers("/readyz")
        await plane.has(1)
        reading = asyncio.ensure_future(stream.read())
        if (await asyncio.wait({reading}, timeout=1))[0]:
            assert reading.result().result, "it has been active all the time"
        reading.cancel()


async def test_more_queues_than_a_message_holds_are_all_known(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        root = plane.fleet.authority.issue(f"spiffe://{DOMAIN}/user/root", tmp_path / "root")
        async with connect(plane.fleet.coordination_address, root) as client:
            queues = [f"ns-{each // 500}/queue-{each}" for each in range(2500)]
            for start in range(0, len(queues), 50):
                works = [client.submit(queue, Work(b"a")) for queue in queues[start : start + 50]]
                await asyncio.gather(*works)
        stub, _ = await plane.another()
        for queue in (queues[0], queues[1999], queues[-1]):
            namespace, _, name = queue.partition("/")
            ref = pb.ScaledObjectRef(name=name, namespace=namespace)
            assert await said(stub.StreamIsActive(ref))
        assert not (await stub.IsActive(DOCS)).result


async def test_a_quiet_stream_says_the_same_again_and_a_dead_one_is_noticed(tmp_path: Path) -> None:
    async with scaled(tmp_path) as plane:
        loop = asyncio.get_running_loop()
        proxy = Proxy(lambda side: loop.create_connection(side, "127.0.0.1", plane.port))
        await proxy.open()
        identity = Identity(tmp_path / "keda")
        async with _connection(proxy.port, identity) as channel:
            silent = pb_grpc.ExternalScalerStub(channel).StreamIsActive(DOCS)
            assert not await said(silent)
            assert await plane.scaler.metric(OPEN) == 1
            proxy.freeze()
            stream = plane.stream()
            assert not await said(stream)
            while await plane.scaler.metric(OPEN) > 1:
                assert not await said(stream)
            silent.cancel()
        await proxy.close()
