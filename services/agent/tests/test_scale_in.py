"""Scale-in, against a real coordination service: what becomes of the work of an agent that has to go."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from agentctl.agent.v1 import agent_service_pb2 as agent_pb
from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs import pki
from libs.errors import UnavailableError
from libs.exits import Exit
from libs.testing.mesh import Mesh
from libs.testing.ports import free_port
from libs.work import Client, Shard, Work, connect
from services.agent.modes.claim import Claim
from services.agent.steering import ReferenceAgent

from .fakes import SOON, Engine, Turns, forever, living, reference
from .scripted import provider, says
from .test_process import Agent as Process
from .test_process import agent as process
from .test_process import until_asked

QUEUE = "demo/worker"
LEASE = timedelta(minutes=5)  # whoever waits for its end fails
READY, LEASED, SUCCEEDED = (
    work_pb2.WORK_STATE_READY,
    work_pb2.WORK_STATE_LEASED,
    work_pb2.WORK_STATE_SUCCEEDED,
)


@dataclass
class Line:
    """The agent's way to coordination. While it does not flow, answers stay on it."""

    server: str
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    _writers: set[StreamWriter] = field(default_factory=set)

    async def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        host, _, port = self.server.rpartition(":")
        from_server, to_server = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, to_server}
        async with asyncio.TaskGroup() as both:
            both.create_task(self._carry(reader, to_server, is_answer=False))
            both.create_task(self._carry(from_server, writer, is_answer=True))

    def cut(self) -> None:
        """What is on it is lost; from now on it flows."""
        for writer in self._writers:
            writer.transport.abort()
        self.flows.set()

    async def _carry(self, reader: StreamReader, writer: StreamWriter, *, is_answer: bool) -> None:
        with suppress(ConnectionError, RuntimeError):  # uvloop's word for a connection that was cut
            while data := await reader.read(65536):
                if is_answer:
                    await self.flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass
class Fleet:
    """A queue of a coordination service that keeps its work in memory."""

    mesh: Mesh
    address: str
    client: Client
    line: Line

    async def submit(self, shard_key: str = "") -> str:
        return (await self.client.submit(QUEUE, Work(b"text", shard_key=shard_key))).id

    async def item(self, id: str) -> work_pb2.Item:
        (found,) = (await self.client.stub.GetItems(pb.GetItemsRequest(item_ids=[id]))).items
        return found

    async def until(self, id: str, state: work_pb2.WorkState.ValueType) -> None:
        """Returns when the item is in that state."""
        async with asyncio.timeout(10):
            while (await self.item(id)).state != state:  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.01)

    async def is_handed_back(self, id: str) -> bool:
        """Whether anybody may have it, and no attempt counts."""
        item = await self.item(id)
        return item.state == READY and item.attempt == 0 and not item.failures

    @asynccontextmanager
    async def agent(
        self, engine: Engine, *, slots: int = 2, drain: timedelta = SOON, shard: Shard | None = None
    ) -> AsyncIterator[tuple[ReferenceAgent, asyncio.Task[object]]]:
        """One that works on the queue; after the block it has drained, and its connections are closed."""
        identity = self.mesh.identity("agent")
        async with connect(self.line.address, identity) as client:
            agent = reference(engine, mode="claim", slots=slots, drain_timeout=drain)
            claim = Claim(agent.desk, engine, "Do.", client, pki.own(identity), QUEUE, LEASE, shard)
            agent.on_drain.append(claim.drain)
            async with living(agent, claim.run) as life:
                yield agent, life


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    mesh, port = Mesh(folder), free_port()
    environment = {
        "AGENTCTL_TLS_DIR": str(mesh.identity("cp/coordination").folder),
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": str(port),
        "COORDINATION_METRICS_PORT": "0",
    }
    with (folder / "coordination").open("wb") as log:
        coordination = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.coordination", env={**os.environ, **environment}, stderr=log
        )
    line = Line(f"127.0.0.1:{port}")
    line.flows.set()
    server = await asyncio.start_server(line.connected, "127.0.0.1")
    line.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with connect(line.server, mesh.identity("administrator")) as client:
            await _configured(client)
            yield Fleet(mesh, line.server, client, line)
    finally:
        server.close()
        coordination.terminate()
        await coordination.wait()


async def _configured(client: Client) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=QUEUE))
            except UnavailableError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_it_finishes_what_it_has_and_takes_no_more(tmp_path):
    turns = Turns(1)
    async with fleet(tmp_path) as it:
        first, second = await it.submit(), await it.submit()
        async with it.agent(Engine(turns)) as (agent, life):
            await turns.until(2)
            agent.stop()
            third = await it.submit()
            for _ in range(2):
                turns.go.release()
        assert life.result() is Exit.OK
        for id in (first, second):
            item = await it.item(id)
            assert (item.state, item.attempt) == (SUCCEEDED, 1)
        assert await it.is_handed_back(third)


async def test_what_it_cannot_finish_in_time_is_handed_back(tmp_path):
    async with fleet(tmp_path) as it:
        ids = [await it.submit() for _ in range(5)]
        engine = Engine(forever)
        async with it.agent(engine, slots=4, drain=timedelta(milliseconds=100)) as (_, life):
            for _ in range(4):
                await engine.begun.acquire()
        assert life.result() is Exit.OK
        assert [await it.is_handed_back(id) for id in ids] == [True] * 5


@pytest.mark.parametrize("is_cut", [False, True], ids=["the answer comes", "the answer is lost"])
async def test_what_a_claim_is_granted_at_that_moment_is_handed_back(tmp_path, is_cut):
    engine = Engine(forever)
    async with fleet(tmp_path) as it:
        async with it.agent(engine) as (agent, life):
            await _parked(it)
            it.line.flows.clear()
            id = await it.submit()
            await it.until(id, LEASED)
            agent.stop()
            it.line.cut() if is_cut else it.line.flows.set()
        assert life.result() is Exit.OK
        assert not engine.orders
        assert await it.is_handed_back(id)


@pytest.mark.parametrize("is_cut", [False, True], ids=["the answer comes", "the answer is lost"])
async def test_what_is_granted_with_an_ack_at_that_moment_is_handed_back(tmp_path, is_cut):
    turns = Turns(1)
    async with fleet(tmp_path) as it:
        first = await it.submit()
        async with it.agent(Engine(turns), slots=1) as (agent, life):
            await turns.until(1)
            it.line.flows.clear()
            second = await it.submit()
            turns.go.release()
            await it.until(second, LEASED)
            agent.stop()
            it.line.cut() if is_cut else it.line.flows.set()
        assert life.result() is Exit.OK
        item = await it.item(first)
        assert (item.state, item.attempt) == (SUCCEEDED, 1)
        assert await it.is_handed_back(second)
    assert len(turns.taken) == 1


async def _parked(it: Fleet) -> None:
    """Returns when the agent's claim waits."""
    async with asyncio.timeout(10):
        while True:
            answer = await it.client.stub.GetQueues(pb.GetQueuesRequest(queues=[QUEUE]))
            if answer.queues[0].parked_claims_count:
                return
            await asyncio.sleep(0.01)


async def _draining(worker: Process) -> None:
    """Returns when it says so."""
    async with asyncio.timeout(10), worker.steered() as stub:
        while not (await stub.GetStatus(agent_pb.GetStatusRequest())).draining:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("patience", "is_finished"), [("20s", True), ("300ms", False)])
async def test_sigterm_is_the_drain(tmp_path, patience, is_finished):
    reply = replace(says("an answer"), waits=True)
    async with fleet(tmp_path) as it, provider(reply) as endpoint:
        first = await it.submit()
        async with process(
            tmp_path,
            "claim",
            base_url=endpoint.url,
            AGENT_QUEUE=QUEUE,
            AGENT_SLOTS="1",
            AGENT_LEASE="5m",
            AGENT_START_TIMEOUT="20s",
            AGENT_DRAIN_TIMEOUT=patience,
            AGENTCTL_COORDINATION_ADDRESS=it.address,
        ) as worker:
            await until_asked(endpoint, 1)
            second = await it.submit()
            worker.process.send_signal(signal.SIGTERM)
            if is_finished:
                await _draining(worker)
                endpoint.go.set()
            assert await worker.ended() == (0, "")
        item = await it.item(first)
        if is_finished:
            assert (item.state, item.attempt, item.result) == (SUCCEEDED, 1, b"an answer")
        else:
            assert await it.is_handed_back(first)
        assert await it.is_handed_back(second)
        assert len(endpoint.asked) == 1
