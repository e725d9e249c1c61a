"""What a review looks up, and what becomes of it if that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.cluster import Access, Bearer, UnauthorisedError
from libs.cluster.kinds import MCP_SERVER_SET, MODEL_POOL
from libs.errors import InvalidError, UnavailableError
from services.admission.context import Needs, Policy
from services.admission.gathering import MOST_LOOKUPS, Gatherer

from .declared import pool, server_set
from .served import World

JANE = Bearer("jane", ("dev",))
SECRET = Access("get", "", "secrets", "demo", "word")
ACCOUNT = Access("impersonate", "", "serviceaccounts", "demo", "robot")
WANTED = Needs("demo", ((MODEL_POOL, "large"), (MCP_SERVER_SET, "mail")), (SECRET, ACCOUNT))


def gatherer(world: World, **options: Any) -> Gatherer:
    cluster: Any = world
    return Gatherer(cluster, Policy(), **options)


async def test_facts_are_what_is_there_and_what_is_granted(world):
    world.put(pool("large"), server_set("other"))
    world.denied.add(("impersonate", "serviceaccounts"))
    facts = await gatherer(world).gather(WANTED, JANE, within=5)
    assert facts.objects == {(MODEL_POOL, "large"): pool("large")}
    assert facts.granted == {SECRET}
    assert world.authors == [JANE, JANE]


async def test_lookups_run_at_once_but_not_too_many(world):
    await gatherer(world).gather(WANTED, JANE, within=5)
    assert world.most == 4
    few, accesses = (
        gatherer(world, at_once=3),
        tuple(Access("get", "", "secrets", "demo", f"s{n}") for n in range(20)),
    )
    world.most = 0
    wanted = Needs("demo", (), accesses)
    await asyncio.gather(*(few.gather(wanted, JANE, within=5) for _ in range(4)))
    assert world.most == 3


@pytest.mark.parametrize("error", [UnavailableError("it is down"), UnauthorisedError("we may not ask")])
async def test_what_cannot_be_looked_up_is_named_and_never_granted(world, error):
    world.down = {"mail": error, "word": error}
    with pytest.raises(UnavailableError) as caught:
        await gatherer(world).gather(WANTED, JANE, within=5)
    assert f"MCPServerSet 'mail' ({error})" in str(caught.value)
    assert f"whether the author may get secrets 'word' ({error})" in str(caught.value)


async def test_one_lookup_without_an_answer_does_not_take_all_the_time(world):
    world.silent = {"large"}
    with pytest.raises(UnavailableError, match=r"ModelPool 'large' \(no answer in 0.05 s\)"):
        await gatherer(world, seconds=0.05).gather(WANTED, JANE, within=60)


async def test_a_review_ends_within_its_own_time(world):
    world.silent = {"large"}
    with pytest.raises(UnavailableError, match="in time"):
        await gatherer(world, seconds=60).gather(WANTED, JANE, within=0.05)
    assert world.underway == 0


async def test_a_name_that_nothing_can_have_is_nobodys(world):
    world.down = {"../secrets": InvalidError("no name")}
    facts = await gatherer(world).gather(Needs("demo", ((MODEL_POOL, "../secrets"),)), JANE, within=5)
    assert not facts.objects


async def test_an_object_that_names_too_much_is_not_looked_up(world):
    accesses = tuple(Access("get", "", "secrets", "demo", f"s{n}") for n in range(MOST_LOOKUPS + 1))
    with pytest.raises(InvalidError, match="65 things"):
        await gatherer(world).gather(Needs("demo", (), accesses), JANE, within=5)
    assert world.asked == []
