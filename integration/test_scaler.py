"""The scaler and a real coordination as processes, asked as KEDA asks: plain gRPC on one connection."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.identity import Identity
from libs.work import Work, connect

from .fleet import DOMAIN, QUEUE, Fleet, Process, fleet, free_port, spawn, until

NAMESPACE, _, NAME = QUEUE.partition("/")
DOCS = pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE, scalerMetadata={"target": "2"})
OTHERS = pb.ScaledObjectRef(name=NAME, namespace="other", scalerMetadata={"target": "2"})
ITEMS = "agentctl-items"


@dataclass
class Scaled:
    """A coordination, a scaler, and KEDA's connection to it."""

    fleet: Fleet
    scaler: Process
    stub: Any

    def stream(self, ref: pb.ScaledObjectRef = DOCS) -> Any:
        return self.stub.StreamIsActive(ref)

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
        dns_names = ("localhost",)
        own = made.authority.issue(f"spiffe://{DOMAIN}/cp/scaler", folder / "scaler", dns_names=dns_names)
        port, plain = free_port(), free_port()
        environment = {
            "SCALER_PORT": str(port),
            "SCALER_METRICS_PORT": str(plain),
            "AGENTCTL_COORDINATION_ADDRESS": made.coordination_address,
            "AGENTCTL_TLS_DIR": str(own.folder),
        }
        scaler = await spawn(stack, folder, "scaler", plain, environment)
        await scaler.answers("/readyz")
        identity = made.authority.issue(f"spiffe://{DOMAIN}/cp/keda", folder / "keda")
        channel = await stack.enter_async_context(_connection(port, identity))
        yield Scaled(made, scaler, pb_grpc.ExternalScalerStub(channel))


def _connection(port: int, identity: Identity) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
    )
    service_config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    return grpc.aio.secure_channel(
        f"localhost:{port}", credentials, [("grpc.service_config", service_config)]
    )


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
