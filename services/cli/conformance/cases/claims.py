"""CLAIM: items of a queue have one owner, who renews, settles, and gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.exits import Exit

from ..case import Group, SkippedError, becomes, demand, never
from ..model import Fail, Say, Talk
from ..queue import Queue, coordination
from ..subject import Subject
from ..world import DRAIN_SECONDS, World

_LEASE = 2.0
_OF_TWO = {"a": 0, "b": 1}  # keys and their shards: FNV-1a modulo 2


@dataclass(frozen=True, slots=True)
class Claims:
    """A queue, and the agents that claim from it: each case starts its own."""

    world: World
    queue: Queue

    @asynccontextmanager
    async def worker(self, **more: str) -> AsyncIterator[Subject]:
        """An agent in mode claim."""
        settings = self.world.settings(
            "claim",
            AGENT_QUEUE=self.queue.name,
            AGENT_LEASE=f"{_LEASE:g}s",
            AGENTCTL_COORDINATION_ADDRESS=self.queue.address,
        )
        async with self.world.agent(settings | more) as agent:
            yield agent

    async def submit(self, talk: Talk, *, shard_key: str = "") -> str:
        """An item that the script knows."""
        return await self.queue.submit(f"Do as the script says. {talk.word}", shard_key=shard_key)


@asynccontextmanager
async def _start(world: World) -> AsyncIterator[Claims]:
    world.needs_launch()
    async with coordination(world) as queue:
        claims = Claims(world, queue)
        async with claims.worker():  # SkippedError if it has no such mode
            pass
        yield claims


GROUP = Group("claims", _start)


def _state(item: work_pb2.Item) -> str:
    return work_pb2.WorkState.Name(item.state).removeprefix("WORK_STATE_")


@GROUP.case(
    "CLAIM-01",
    "each of 12 items is done once by one of two agents, and the ack carries the result",
    seconds=60,
)
async def _has_one_owner(claims: Claims) -> None:
    talks = [claims.world.model.script(Say(f"result-{n}")) for n in range(12)]
    second = str(claims.world.minted.of("agent").folder)
    async with claims.worker() as agent:
        demand(agent.manifest.surfaces.queue == claims.queue.name, "its manifest does not name the queue")
        other = claims.world.settings(
            "claim",
            AGENT_QUEUE=claims.queue.name,
            AGENTCTL_TLS_DIR=second,
            AGENTCTL_COORDINATION_ADDRESS=claims.queue.address,
        )
        async with claims.world.started(other):
            items = [await claims.submit(talk) for talk in talks]
            for n, id in enumerate(items):
                item = await claims.queue.settled(id, seconds=30)
                demand(
                    item.state == work_pb2.WORK_STATE_SUCCEEDED, f"an item is {_state(item)}: {item.failures}"
                )
                demand(
                    item.result == f"result-{n}".encode(),
                    f"its result is {item.result!r}, the model said 'result-{n}'",
                )
                demand(item.attempt == 1, f"it took {item.attempt} attempts")
    asked = [len(talk.requests) for talk in talks]
    demand(asked == [1] * 12, f"the model was asked {asked} times for the items")


@GROUP.case("CLAIM-02", "a run that takes longer than its lease keeps it, by renewing", seconds=60)
async def _renews(claims: Claims) -> None:
    talk = claims.world.model.script(Say("late"), hold=(1,))
    async with claims.worker():
        id = await claims.submit(talk)
        await becomes(lambda: talk.requests, "the item is not begun", seconds=15)
        await never(
            lambda: len(talk.requests) > 1, "the item is begun again, its lease has ended", seconds=2 * _LEASE
        )
        talk.release()
        item = await claims.queue.settled(id)
    demand(
        item.result == b"late" and item.attempt == 1,
        f"{_state(item)} at attempt {item.attempt}: {item.result!r}",
    )


@GROUP.case(
    "CLAIM-03", "a failure of the model that passes fails the attempt, and a later one does it", seconds=60
)
async def _retries(claims: Claims) -> None:
    talk = claims.world.model.script(Fail(500), Say("at last"))
    async with claims.worker():
        item = await claims.queue.settled(await claims.submit(talk), seconds=40)
    demand(item.result == b"at last", f"the item is {_state(item)}: {list(item.failures)}")
    demand(item.attempt == 2, f"it took {item.attempt} attempts; the queue retries, not the agent: 2")


@GROUP.case("CLAIM-04", "a refusal goes to the dead letters at once, with a reason", seconds=60)
async def _is_refused(claims: Claims) -> None:
    talk = claims.world.model.script(Say(refusal="against my rules"))
    async with claims.worker():
        item = await claims.queue.settled(await claims.submit(talk))
    demand(item.state == work_pb2.WORK_STATE_DEAD, f"the item is {_state(item)}, not DEAD")
    demand(item.attempt == 1, f"it was tried {item.attempt} times")
    demand(any(failure.error for failure in item.failures), "the dead letter says no reason")


@GROUP.case("CLAIM-05", "a paused agent claims nothing; resumed, it does", seconds=60)
async def _is_paused(claims: Claims) -> None:
    talk = claims.world.model.script(Say())
    async with claims.worker() as agent:
        agent.needs("Pause")
        stub = await agent.steer()
        await stub.Pause(pb.PauseRequest())
        id = await claims.submit(talk)
        await never(lambda: talk.requests, "an item is begun while the agent is paused", seconds=1.5)
        item = await claims.queue.item(id)
        demand(item.state == work_pb2.WORK_STATE_READY, f"the item is {_state(item)}, not READY")
        await stub.Resume(pb.ResumeRequest())
        await claims.queue.settled(id)


@GROUP.case("CLAIM-06", "a paused run keeps its lease", seconds=60)
async def _keeps(claims: Claims) -> None:
    talk = claims.world.model.script(Say("kept"), hold=(1,))
    async with claims.worker() as agent:
        agent.needs("Pause")
        id = await claims.submit(talk)
        await becomes(lambda: talk.requests, "the item is not begun", seconds=15)
        stub = await agent.steer()
        request = pb.PauseRequest()
        request.wait.FromNanoseconds(0)
        await stub.Pause(request)
        await never(lambda: len(talk.requests) > 1, "the item is begun again", seconds=1.5 * _LEASE)
        item = await claims.queue.item(id)
        demand(
            item.state == work_pb2.WORK_STATE_LEASED,
            f"the item of a paused run is {_state(item)}, not LEASED",
        )
        await stub.Resume(pb.ResumeRequest())
        talk.release()
        item = await claims.queue.settled(id)
    demand(item.result == b"kept" and item.attempt == 1, f"{_state(item)} at attempt {item.attempt}")


@GROUP.case(
    "CLAIM-07", "Cancel of an item's run makes it a dead letter with the reason, without a retry", seconds=60
)
async def _is_cancelled(claims: Claims) -> None:
    talk = claims.world.model.script(Say(), hold=(1,))
    async with claims.worker() as agent:
        agent.needs("Cancel")
        id = await claims.submit(talk)
        await becomes(lambda: talk.requests, "the item is not begun", seconds=15)
        runs = [run.id for run in (await agent.status()).runs]
        demand(runs == [id], f"the runs under way are {runs}, the item is {id}")
        await (await agent.steer()).Cancel(pb.CancelRequest(run_id=id, reason="changed our minds"))
        item = await claims.queue.settled(id)
    demand(item.state == work_pb2.WORK_STATE_DEAD, f"the item is {_state(item)}, not DEAD")
    said = " ".join(failure.error for failure in item.failures)
    demand("changed our minds" in said, f"the dead letter says {said!r}, not the reason")


@GROUP.case("CLAIM-08", "a drain gives back what it cannot finish, uncounted, and ends with 0", seconds=60)
async def _gives_back(claims: Claims) -> None:
    talk = claims.world.model.script(Say("second owner"), hold=(1,))
    async with claims.worker(AGENT_LEASE="60s") as agent:
        id = await claims.submit(talk)
        await becomes(lambda: talk.requests, "the item is not begun", seconds=15)
        assert agent.process is not None
        agent.process.terminate()
        code = await agent.process.ended(DRAIN_SECONDS + 8)
        demand(code == Exit.OK, f"exit code {code}, it has to be 0{agent.process.last_words()}")
    item = await claims.queue.item(id)
    demand(item.state == work_pb2.WORK_STATE_READY, f"the item is {_state(item)}, not READY")
    demand(item.attempt == 0, f"it counts {item.attempt} attempts, a release counts none")
    talk.release()
    async with claims.worker():
        await claims.queue.settled(id)


@GROUP.case("CLAIM-09", "what a killed agent held is done by another when its lease has ended", seconds=60)
async def _is_survived(claims: Claims) -> None:
    talk = claims.world.model.script(Say("second owner"), hold=(1,))
    async with claims.worker() as agent:
        id = await claims.submit(talk)
        await becomes(lambda: talk.requests, "the item is not begun", seconds=15)
        assert agent.process is not None
        await agent.process.kill()
    talk.release()
    second = str(claims.world.minted.of("agent").folder)
    settings = claims.world.settings(
        "claim",
        AGENT_QUEUE=claims.queue.name,
        AGENTCTL_TLS_DIR=second,
        AGENTCTL_COORDINATION_ADDRESS=claims.queue.address,
    )
    async with claims.world.started(settings):
        item = await claims.queue.settled(id, seconds=30)
    demand(item.result == b"second owner", f"the item is {_state(item)}: {list(item.failures)}")
    demand("neighbour" in item.holder, f"it was done by {item.holder}, not by the other agent")


@GROUP.case(
    "CLAIM-10",
    "told a shard, it is given items of that one; it outlives a new division, and claims nothing then",
    seconds=60,
)
async def _keeps_to_its_shard(claims: Claims) -> None:
    talks = [claims.world.model.script(Say(f"result-{n}")) for n in range(3)]
    epoch = await claims.queue.divide(len(_OF_TWO))
    shard = {"INDEX": _OF_TWO["b"], "COUNT": len(_OF_TWO), "EPOCH": epoch}
    told = {f"AGENT_SHARD_{name}": str(value) for name, value in shard.items()}
    try:
        async with claims.worker(**told) as agent:
            if agent.manifest.contract_version == "1.0":
                raise SkippedError("not offered: it keeps contract 1.0, shards came with 1.1")
            others = await claims.submit(talks[0], shard_key="a")
            await claims.queue.settled(await claims.submit(talks[1], shard_key="b"))
            await never(lambda: talks[0].requests, "an item of another shard is begun", seconds=1.0)
            await claims.queue.divide(3)
            later = await claims.submit(talks[2], shard_key="b")
            await never(lambda: talks[2].requests, "an item is begun by the old division", seconds=2.0)
            demand((await agent.status()).ready, "it is not ready because the queue is divided anew")
    finally:
        await claims.queue.divide(0)
    async with claims.worker():
        for id in (others, later):
            await claims.queue.settled(id)
