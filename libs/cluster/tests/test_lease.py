"""Elections by a clock of ours, over a lease that conflicts as an API server's does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from libs.cluster.kinds import LEASE
from libs.cluster.lease import Election, NotLeadingError

from .clock import settle
from .fake import FakeCluster, settled


class Candidate:
    """A process that wants to lead: its way to the home, its reign, and what froze it."""

    def __init__(self, world, clock, name):
        self.cluster = FakeCluster(world)
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.clock = clock
        self.reigns = 0
        self.reigning = False
        self.over = anyio.Event()
        self.election = Election(self.cluster, "system", "lead", name, clock=clock.time, sleep=self.sleep)

    async def sleep(self, seconds):
        await self.clock.sleep(seconds)
        await self.thawed.wait()

    async def lead(self):
        self.reigns += 1
        self.reigning = True
        try:
            await self.over.wait()
        finally:
            self.reigning = False

    @property
    def leading(self):
        return self.election.leading


@pytest.fixture
async def anna(world, clock):
    return Candidate(world, clock, "anna")


@pytest.fixture
async def ben(world, clock):
    return Candidate(world, clock, "ben")


@asynccontextmanager
async def campaigning(*candidates):
    """All of them, until the end of the block. Gives the way to stop each."""
    stops = {}

    async def campaign(candidate):
        with anyio.CancelScope() as stops[candidate]:
            await candidate.election.run(candidate.lead)

    async with anyio.create_task_group() as group:
        for candidate in candidates:
            group.start_soon(campaign, candidate)
            await settle()
        yield stops
        group.cancel_scope.cancel()


async def lease(world):
    return (await FakeCluster(world).get(LEASE, "system", "lead"))["spec"]


async def test_first_candidate_leads_and_the_second_waits(anna, ben, world, clock):
    async with campaigning(anna, ben):
        await clock.advance(300)
        assert (anna.reigning, ben.reigning) == (True, False)
        assert (anna.reigns, ben.reigns) == (1, 0)
        anna.election.check()
        with pytest.raises(NotLeadingError):
            ben.election.check()
        spec = await lease(world)
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("anna", 0)


async def test_stop_releases_the_lease_and_another_leads_within_a_period(anna, ben, world, clock):
    async with campaigning(anna, ben) as stops:
        await clock.advance(60)
        stops[anna].cancel()
        await settle()
        assert not anna.leading
        assert (await lease(world))["holderIdentity"] == ""
        await clock.advance(2.5)
        assert ben.reigning
        spec = await lease(world)
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("ben", 1)


async def test_lease_is_released_only_when_the_work_has_ended(anna, world, clock):
    ending = anyio.Event()

    async def lead():
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await ending.wait()

    anna.lead = lead
    async with campaigning(anna) as stops:
        stops[anna].cancel()
        await clock.advance(1)
        assert (await lease(world))["holderIdentity"] == "anna"
        ending.set()
        await settle()
        assert (await lease(world))["holderIdentity"] == ""


async def test_run_returns_when_the_work_does(anna, world):
    anna.over.set()
    await anna.election.run(anna.lead)
    assert (await lease(world))["holderIdentity"] == ""
    assert not anna.leading


async def test_error_of_the_work_comes_out_and_the_lease_is_released(anna, world):
    async def lead():
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await anna.election.run(lead)
    assert isinstance(raised.value.exceptions[0], ZeroDivisionError)
    assert (await lease(world))["holderIdentity"] == ""


async def test_short_outage_costs_nobody_the_lead(anna, ben, clock):
    async with campaigning(anna, ben):
        for _ in range(5):
            await clock.advance(20)
            anna.cluster.down = True
            await clock.advance(5)
            anna.cluster.down = False
        assert anna.reigns == 1
        assert anna.leading


async def test_lost_answers_cost_nobody_the_lead(anna, ben, clock):
    async with campaigning(anna, ben):
        anna.cluster.deaf = True
        await clock.advance(5)
        anna.cluster.deaf = False
        await clock.advance(60)
        assert anna.reigns == 1
        assert anna.leading


async def test_long_outage_ends_the_work_before_another_may_lead(anna, ben, clock):
    async with campaigning(anna, ben):
        await clock.advance(30)
        anna.cluster.down = True
        await clock.advance(12.5)
        assert not anna.reigning
        assert not ben.reigning
        await clock.advance(10)
        assert ben.reigning
        anna.cluster.down = False
        await clock.advance(60)
        assert not anna.reigning


async def test_leader_trusts_a_lease_from_before_it_asked_for_it(anna, clock):
    anna.cluster.delay = lambda: clock.sleep(4)
    async with campaigning(anna):
        await clock.advance(4 + 8)  # one way, to hear that there is no lease; there and back, to make it
        assert anna.leading
        anna.cluster.down = True
        await clock.advance(1.9)
        assert anna.leading
        await clock.advance(0.2)
        assert not anna.leading
        anna.cluster.delay = settled


async def test_frozen_leader_refuses_to_write_before_it_runs_again(anna, ben, clock):
    async with campaigning(anna, ben):
        await clock.advance(30)
        anna.thawed.clear()
        await clock.advance(30)
        assert ben.leading
        assert anna.reigning  # it is frozen in the middle of its work
        with pytest.raises(NotLeadingError):
            anna.election.check()
        anna.thawed.set()
        await settle()
        assert not anna.reigning
        assert ben.leading


async def test_clocks_of_others_are_not_believed(anna, fake, clock):
    """A lease whose holder's clock is years behind is respected, as long as it is renewed."""
    spec = {"holderIdentity": "zoe", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"}
    thing = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "system", "name": "lead"},
        "spec": spec,
    }
    thing = await fake.create(thing)
    async with campaigning(anna):
        for minute in range(10, 20):
            await clock.advance(10)
            spec["renewTime"] = f"2001-01-01T00:{minute}:00.000000Z"
            thing = await fake.replace({**thing, "spec": spec})
        assert not anna.reigning
        thing["metadata"]["annotations"] = {"touched": "by somebody else"}  # which is no renewal
        await clock.advance(8)
        await fake.replace(thing)
        await clock.advance(12)
        assert anna.reigning


async def test_lease_that_somebody_deletes_is_made_again(anna, fake, world, clock):
    async with campaigning(anna):
        await fake.delete(LEASE, "system", "lead")
        await clock.advance(8)
        assert anna.leading
        assert (await lease(world))["holderIdentity"] == "anna"


@pytest.mark.parametrize("seed", range(20))
async def test_two_never_lead_at_the_same_time(world, clock, seed):
    """Outages, slow and lost answers, freezes and thaws in any order; each second is looked at."""
    chance = random.Random(seed)
    candidates = [Candidate(world, clock, name) for name in ("anna", "ben", "carl")]
    reigned = set()
    slow = chance.choice([0, 1, 8])
    for candidate in candidates:
        candidate.cluster.delay = lambda: clock.sleep(slow * chance.random())
    async with campaigning(*candidates):
        for _ in range(200):
            victim = chance.choice(candidates)
            victim.cluster.down = chance.random() < 0.3
            victim.cluster.deaf = chance.random() < 0.2
            victim.thawed.clear() if chance.random() < 0.3 else victim.thawed.set()
            for _ in range(chance.randrange(12)):
                await clock.advance(1)
                assert sum(candidate.leading for candidate in candidates) <= 1
                reigned |= {candidate for candidate in candidates if candidate.leading}
        for candidate in candidates:
            candidate.cluster.down = candidate.cluster.deaf = False
            candidate.cluster.delay = settled
            candidate.thawed.set()
        await clock.advance(60)
        assert sum(candidate.leading for candidate in candidates) == 1
    assert len(reigned) > 1


FROZEN = """
import asyncio, sys, time
from libs.cluster.lease import Election, NotLeadingError, Terms
from libs.cluster.tests.fake import FakeCluster, World

async def main():
    election = Election(FakeCluster(World()), "system", "lead", "me", terms=Terms(*map(float, sys.argv[1:])))

    async def lead():
        election.check()
        print("leading", flush=True)
        sys.stdin.readline()  # blocks the loop: nothing can renew before the check below
        try:
            election.check()
        except NotLeadingError:
            print("refused", flush=True)
        else:
            print("wrote", flush=True)

    await election.run(lead)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("freeze", "terms", "expected"), [(False, "3000 2000 0.5", "wrote"), (True, "3 2 0.5", "refused")]
)
def test_stopped_process_refuses_its_first_write(freeze, terms, expected):
    """A real SIGSTOP, longer than the lease is trusted."""
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, *terms.split()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == "leading\n"
            if freeze:
                os.kill(process.pid, signal.SIGSTOP)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(2.5)
                os.kill(process.pid, signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{expected}\n"
        finally:
            process.kill()
