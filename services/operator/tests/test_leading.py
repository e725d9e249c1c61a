"""Two operators: one leads, and who was frozen past its lease writes nothing when it wakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import anyio

from libs.cluster.kinds import AGENT, CRON_JOB, LEASE
from libs.cluster.lease import Election
from libs.cluster.local import open_local

from .world import Counting, World, namespace


@dataclass
class Clock:
    """The time of one machine, and how its sleepers wake: soon, unless it is frozen."""

    now: float = 0.0
    running: anyio.Event = field(default_factory=anyio.Event)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await self.running.wait()
        await anyio.sleep(0.005)


def _election(world: World, name: str, clock: Clock) -> Election:
    clock.running.set()
    return Election(world.cluster, world.system, "agentctl-operator", name, clock=clock, sleep=clock.sleep)


async def test_one_leads_and_the_other_takes_over_when_it_stops(local: World):
    counting = Counting(local.cluster)
    clock = Clock()
    async with local.operator(replica="b", cluster=counting, election=None) as second:
        await local.until(lambda: second.election.leading)
        async with local.operator(replica="a", election=_election(local, "a", clock)) as first:
            await local.apply(local.agent("one", "schedule"))
            await local.there(CRON_JOB, "one")
            assert second.election.leading
            assert not first.election.leading


async def test_a_lease_is_released_on_the_way_out(local: World):
    async with local.operator(replica="a") as operator:
        await local.until(lambda: operator.election.leading)
        lease = await local.cluster.get(LEASE, local.system, "agentctl-operator")
        assert lease["spec"]["holderIdentity"] == "a"
    lease = await local.cluster.get(LEASE, local.system, "agentctl-operator")
    assert not lease["spec"].get("holderIdentity")


async def test_a_leader_that_was_frozen_writes_nothing_when_it_wakes(tmp_path):
    async with open_local(tmp_path / "home") as cluster:
        await cluster.create(namespace("demo"))
        world = World(cluster, "demo", tmp_path)
        frozen, healthy = Clock(), Clock()
        of_a, of_b = Counting(cluster), Counting(cluster)
        elect = partial(_election, world)
        async with world.operator(of_a, replica="a", election=elect("a", frozen)) as a:
            await world.until(lambda: a.election.leading)
            await world.apply(world.agent("x", "schedule"))
            await world.accepted(AGENT, "x", status="True")
            await world.settle(a, AGENT, ["x"])
            frozen.running = anyio.Event()  # no renewal from here on
            async with world.operator(of_b, replica="b", election=elect("b", healthy)) as b:
                while not b.election.leading:
                    healthy.now += 1.0
                    await anyio.sleep(0.005)
                assert a.election.leading, "its own clock stood still; nothing ran that could ask"
                of_a.writes.clear()
                frozen.now += 100.0  # it wakes, and its first thought is no renewal
                await world.apply(world.agent("x", "schedule", instruction="look twice"))
                await world.accepted(AGENT, "x", status="True")
                await world.until(lambda: not a.controller.depths())
                assert of_a.writes == []
                assert of_b.lasting == ["apply CronJob x", "status Agent x"]
                frozen.running.set()
                await world.apply(world.agent("y", "schedule"))
                await world.accepted(AGENT, "y", status="True")
                assert of_a.writes == []
                assert not a.election.leading


async def test_a_leader_that_is_in_the_middle_of_a_pass_stops_before_the_next_write(local: World):
    clock = Clock()

    class Freezing(Counting):
        """The process is frozen while its first write of a child is under way."""

        def after(self) -> None:
            if self.lasting == ["apply CronJob x"]:
                clock.now += 100.0
                clock.running = anyio.Event()

    freezing = Freezing(local.cluster)
    async with local.operator(freezing, replica="a", election=_election(local, "a", clock)) as a:
        await local.until(lambda: a.election.leading)
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        await local.until(lambda: a.controller.failing or a.controller.depths() == {})
        assert freezing.lasting == ["apply CronJob x"]
        assert "status" not in await local.get(AGENT, "x")
