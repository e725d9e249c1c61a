"""Two operators as processes: one leads, and the other takes over, however the first one stops.

Each change is a new instruction of an Agent whose runs are suspended: one write of a CronJob, which the API
server counts as a generation.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CRON_JOB, LEASE

from . import foreign
from .operators import LEASE_SECONDS, Operator, Post, operator
from .watching import Watching, accepted, watching

pytestmark = pytest.mark.cluster

NAMES = [f"agent-{number}" for number in range(5)]
MARGIN_SECONDS = 7  # the follower looks every 0.6 s, and this machine may be slow
_numbers = itertools.count()


async def change(seen: Watching) -> None:
    """Every Agent is told something new, and that is applied once to each."""
    before = {name: generation(seen.get(CRON_JOB, name)) for name in NAMES}
    for name in NAMES:
        schedule = {"cron": "@yearly", "suspend": True}
        thing = foreign.agent(
            seen.namespace, name, f"number {next(_numbers)}", mode="schedule", schedule=schedule
        )
        await seen.cluster.apply(thing, "test")
    for name in NAMES:
        made = await seen.cluster.get(AGENT, seen.namespace, name)
        await seen.until(
            lambda: current(seen.get(AGENT, name), made)  # noqa: B023
        )
        assert generation(seen.get(CRON_JOB, name)) == before[name] + 1


def generation(thing: Object | None) -> int:
    """How often its spec has changed; of what is not there: 0."""
    return int(thing["metadata"]["generation"]) if thing else 0


def current(seen: Object | None, made: Object) -> bool:
    """Whether status is of what was declared."""
    return generation(seen) == generation(made) and accepted(seen)[0] == "True"


def revisions(seen: Watching) -> dict[str, str]:
    """Of everything in the namespace, status and managed fields included."""
    things = [thing for informer in seen.informers.values() for thing in informer.items()]
    return {thing["metadata"]["uid"]: thing["metadata"]["resourceVersion"] for thing in things}


async def leads(one: Operator, expected: bool = True) -> float:
    """Seconds until it does, or does no more."""
    began = time.monotonic()
    with anyio.fail_after(60):
        while await one.leads() is not expected:  # noqa: ASYNC110  (it is another process)
            await anyio.sleep(0.05)
    return time.monotonic() - began


async def quiet(one: Operator) -> float:
    """What it has written, once its events have followed what they tell of."""
    last = -1.0
    while (written := await one.writes()) != last:
        last = written
        await anyio.sleep(1)
    return written


async def holder(seen: Watching, post: Post) -> str:
    """Who has the Lease."""
    lease = await seen.cluster.get(LEASE, post.system, "agentctl-operator")
    return str(lease["spec"].get("holderIdentity") or "")


@asynccontextmanager
async def two(post: Post) -> AsyncIterator[tuple[Watching, Operator, Operator]]:
    """The one that leads, and the one that follows."""
    async with (
        watching(post.kubeconfig, post.namespace) as seen,
        operator(post, "first") as first,
    ):
        await leads(first)
        async with operator(post, "second") as second:
            await change(seen)
            assert await first.leads()
            assert not await second.leads()
            assert await second.writes() == 0
            yield seen, first, second


async def test_a_leader_that_was_paused_past_its_lease_writes_nothing_when_it_wakes(post: Post) -> None:
    async with two(post) as (seen, first, second):
        written = await quiet(first)
        first.pause()
        took = await leads(second)
        assert took < LEASE_SECONDS + MARGIN_SECONDS
        assert await holder(seen, post) == "second"
        await change(seen)
        before = revisions(seen)
        first.resume()
        await leads(first, expected=False)
        await change(seen)  # it hears of these as well as the other does
        after = revisions(seen)
        assert {uid for uid in after if uid not in before} == set()
        assert await first.writes() == written
        assert await second.leads()
        assert await holder(seen, post) == "second"


async def test_a_killed_leader_is_followed_when_its_lease_has_run_out(post: Post) -> None:
    async with two(post) as (seen, first, second):
        await first.kill()
        assert await leads(second) < LEASE_SECONDS + MARGIN_SECONDS
        before = revisions(seen)
        await change(seen)
        assert revisions(seen).keys() == before.keys()


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(post: Post) -> None:
    async with two(post) as (seen, first, second):
        assert await first.terminate() == 0
        took = await leads(second)
        assert took < LEASE_SECONDS, "the lease was released: nobody waits for its end"
        await change(seen)


async def test_a_fleet_without_its_pool_says_so_and_goes_on_when_the_pool_comes(post: Post) -> None:
    part = {"model": {"pool": "later"}}
    fleet = foreign.fleet(post.namespace, "workers", "work", 1, **part)
    pool = {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "later", "namespace": post.namespace},
        "spec": {"models": ["one"], "endpoint": "https://models.example/v1"},
    }
    async with watching(post.kubeconfig, post.namespace) as seen, operator(post):

        def said() -> tuple[str, str]:
            return accepted(seen.get(AGENT_FLEET, "workers"))

        await seen.cluster.apply(fleet, "test")
        await seen.until(lambda: said() == ("False", "UnknownModelPool"))
        assert seen.owned() == []
        began = time.monotonic()
        await seen.cluster.apply(pool, "test")
        await seen.until(lambda: said()[0] == "True", 10)  # each object is looked at every ten minutes
        sys.stdout.write(f"accepted {time.monotonic() - began:.3f} s after the pool's apply began\n")
        await seen.until(lambda: seen.ready("workers"))
