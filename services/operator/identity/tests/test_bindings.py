"""How many tokens somebody may use at a time."""

from __future__ import annotations

import asyncio

import pytest

from libs.cluster import Bearer
from libs.errors import DeniedError, ExhaustedError
from services.operator.identity.bindings import Bindings

from .conftest import SYSTEM

pytestmark = pytest.mark.anyio

MOST = 64


def bearer(world, number, account="ci", seconds=3600, **pod):
    username = f"system:serviceaccount:demo:{account}"
    return Bearer(username, token_id=f"{account}-{number}", expires_at=world.now() + seconds, **pod)


@pytest.fixture
async def bindings(world):
    await world.namespace(SYSTEM)
    return Bindings(world.cluster, SYSTEM, world.now)


async def test_an_account_has_so_many_live_tokens_and_no_other_notices(world, bindings):
    for number in range(MOST):
        await bindings.bind(bearer(world, number), "", f"key {number}")
    with pytest.raises(ExhaustedError, match="system:serviceaccount:demo:ci has 64 live tokens"):
        await bindings.bind(bearer(world, MOST), "", "key")
    await bindings.bind(bearer(world, 0), "", "key 0")
    with pytest.raises(DeniedError, match="another key"):
        await bindings.bind(bearer(world, 0), "", "not its key")
    await bindings.bind(bearer(world, 0, "another"), "", "key")
    await bindings.bind(bearer(world, MOST, pod="p", pod_uid="uid"), "", "key", runs="x")
    assert await bindings.attested("uid") == "x"


async def test_a_pod_that_drains_for_a_day_may_have_a_token_of_two(world, bindings):
    day = 86_400
    await bindings.bind(bearer(world, 1, seconds=2 * day, pod="p", pod_uid="uid"), "", "key", runs="x")
    with pytest.raises(DeniedError, match="longer than 48 h"):
        await bindings.bind(bearer(world, 2, seconds=3 * day, pod="p", pod_uid="uid"), "", "key", runs="x")
    with pytest.raises(DeniedError, match="longer than 24 h"):
        await bindings.bind(bearer(world, 3, seconds=2 * day), "", "key")


async def test_a_token_that_has_ended_makes_room(world, bindings):
    for number in range(MOST):
        await bindings.bind(bearer(world, number), "", "key")
    world.clock += 3600 + 120
    await bindings.bind(bearer(world, MOST), "", "key")


async def test_a_restart_and_another_replica_count_too(world, bindings):
    for number in range(MOST):
        await bindings.bind(bearer(world, number), "", "key")
    again = Bindings(world.cluster, SYSTEM, world.now)
    with pytest.raises(ExhaustedError):
        await again.bind(bearer(world, MOST), "", "key")


async def test_those_that_come_at_the_same_time_count_too(world, bindings):
    many = [bindings.bind(bearer(world, number), "", "key") for number in range(MOST + 6)]
    outcomes = await asyncio.gather(*many, return_exceptions=True)
    assert sum(isinstance(each, ExhaustedError) for each in outcomes) == 6


async def test_the_tokens_of_a_pod_are_counted_for_themselves(world, bindings):
    for number in range(MOST):
        await bindings.bind(bearer(world, number, pod="p", pod_uid="uid"), "", "key")
    with pytest.raises(ExhaustedError, match="pod p has"):
        await bindings.bind(bearer(world, MOST, pod="p", pod_uid="uid"), "", "key")
    await bindings.bind(bearer(world, MOST, pod="q", pod_uid="uid-2"), "", "key")
