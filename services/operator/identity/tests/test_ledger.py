"""Facts that several replicas write into one ConfigMap."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from libs.cluster import Bearer
from libs.cluster.kinds import CONFIG_MAP
from libs.errors import DeniedError, ExhaustedError, UnavailableError
from services.operator.identity.bindings import Bindings
from services.operator.identity.ledger import Fact, Ledger

from .conftest import SYSTEM

pytestmark = pytest.mark.anyio


@pytest.fixture
def ledger(world):
    return lambda most=4096: Ledger(world.cluster, SYSTEM, "facts", world.now, most)


def until(world, seconds=600):
    return world.now() + seconds


async def test_the_first_fact_stands_for_every_replica(world, ledger):
    one, other = ledger(), ledger()
    await one.add({"a": Fact("1", until(world))})
    await other.add({"a": Fact("2", until(world)), "b": Fact("3", until(world))})
    assert (other.get("a"), other.get("b")) == ("1", "3")
    await one.refresh()
    assert one.get("b") == "3"


async def test_replicas_that_write_at_once_agree(world, ledger):
    replicas = [ledger() for _ in range(4)]
    adding = [
        replica.add({f"k{key}": Fact(str(number), until(world))})
        for key in range(10)
        for number, replica in enumerate(replicas)
    ]
    await asyncio.gather(*adding)
    for replica in replicas:
        await replica.refresh()
    views = [[replica.get(f"k{key}") for key in range(10)] for replica in replicas]
    assert all(view == views[0] for view in views)
    assert "" not in views[0]


async def test_writes_that_come_together_go_together(world, ledger):
    mine = ledger()
    await asyncio.gather(*(mine.add({f"k{key}": Fact("x", until(world))}) for key in range(50)))
    assert len(mine.standing()) == 50
    changes = [change async for change in _changes(world)]
    assert len(changes) <= 3


async def _changes(world):
    """What was ever written to the ConfigMap."""
    async with asyncio.timeout(5):
        async for change in world.cluster.watch(CONFIG_MAP, SYSTEM, since="1"):
            if change.object["metadata"]["name"] == "facts":
                yield change
                if len(change.object["data"]) == 50:
                    return


async def test_facts_end_and_make_room(world, ledger):
    mine = ledger(most=2)
    await mine.add({"a": Fact("1", until(world, 60)), "b": Fact("2", until(world, 600))})
    with pytest.raises(ExhaustedError, match="full"):
        await mine.add({"c": Fact("3", until(world))})
    world.clock += 130
    assert (mine.get("a"), mine.get("b")) == ("", "2")
    await mine.add({"c": Fact("3", until(world))})
    await mine.add({"c": Fact("4", until(world))})
    assert mine.get("c") == "3"


async def test_a_fact_can_be_prolonged(world, ledger):
    mine = ledger()
    await mine.add({"a": Fact("1", until(world, 60))})
    await mine.add({"a": Fact("1", until(world, 6000))})
    world.clock += 600
    assert mine.get("a") == "1"


async def test_a_configmap_that_was_deleted_is_made_again(world, ledger):
    mine = ledger()
    await mine.add({"a": Fact("1", until(world))})
    await world.cluster.delete(CONFIG_MAP, SYSTEM, "facts")
    await mine.add({"b": Fact("2", until(world))})
    await mine.refresh()
    assert mine.get("b") == "2"


class Down:
    """A home that went down."""

    async def get(self, kind, namespace, name):
        raise UnavailableError("the API server is down")


async def test_a_home_that_is_down_writes_nothing_down(world):
    mine = Ledger(cast(Any, Down()), SYSTEM, "facts", world.now)
    with pytest.raises(UnavailableError):
        await mine.add({"a": Fact("1", until(world))})
    assert mine.get("a") == ""


async def test_two_operators_share_the_keys_of_tokens(world):
    one, other = (Bindings(world.cluster, SYSTEM, world.now) for _ in range(2))
    bearer = Bearer("system:serviceaccount:demo:ci", token_id="jti", expires_at=until(world))
    await one.bind(bearer, "token", "key")
    await other.bind(bearer, "token", "key")
    with pytest.raises(DeniedError, match="another key"):
        await other.bind(bearer, "token", "another")
    with pytest.raises(DeniedError, match="another key"):
        await one.bind(bearer, "token", "another")


async def test_of_two_keys_at_once_one_wins(world):
    replicas = [Bindings(world.cluster, SYSTEM, world.now) for _ in range(2)]
    bearer = Bearer("system:serviceaccount:demo:ci", expires_at=until(world))
    outcomes = await asyncio.gather(
        *(replicas[number % 2].bind(bearer, "token", f"key-{number}") for number in range(6)),
        return_exceptions=True,
    )
    assert [outcome is None for outcome in outcomes].count(True) == 1
    assert all(isinstance(outcome, DeniedError) for outcome in outcomes if outcome is not None)
