"""Connections that are kept for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from libs.errors import UnreachableError
from libs.testing.mesh import NAMESPACE
from services.apiserver.agents import Keeping
from services.apiserver.management import Management
from services.apiserver.pods import Pod
from services.apiserver.verbs import Kind, Target, Verb

from .world import BEGAN, World, order

POD = Pod("demo", "writer", "writer-0", "uid-0", "Running", "10.0.0.1", False, BEGAN)
OTHER = replace(POD, name="writer-1", uid="uid-1")


class Dials:
    """Counts connections; nobody is there."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.has_closed = anyio.Event()

    @asynccontextmanager
    async def dial(self, pod: Pod) -> AsyncIterator[Any]:
        self.opened.append(pod.uid)
        try:
            yield object()
        finally:
            self.closed.append(pod.uid)
            self.has_closed.set()


async def use(keeping: Keeping, *pods: Pod) -> None:
    for pod in pods:
        async with keeping.dial(pod):
            pass


async def test_a_connection_is_used_again_by_who_means_the_same_pod_at_the_same_address():
    dials = Dials()
    keeping = Keeping(dials.dial)
    await use(keeping, POD, POD, OTHER, POD, replace(POD, ip="10.0.0.2"))
    assert (dials.opened, dials.closed) == (["uid-0", "uid-1", "uid-0"], [])
    await keeping.close()
    assert len(dials.closed) == 3


async def test_a_connection_on_which_something_failed_is_not_kept():
    dials = Dials()
    keeping = Keeping(dials.dial)
    await use(keeping, POD)
    with pytest.raises(UnreachableError):
        async with keeping.dial(POD):
            raise UnreachableError("reset")
    assert dials.closed == ["uid-0"]
    await use(keeping, POD)
    assert len(dials.opened) == 2
    await keeping.close()


async def test_two_at_once_have_one_each_and_one_of_them_is_kept():
    dials = Dials()
    keeping = Keeping(dials.dial)
    async with keeping.dial(POD) as one, keeping.dial(POD) as other:
        assert one is not other
    await dials.has_closed.wait()
    await use(keeping, POD)
    assert (len(dials.opened), len(dials.closed)) == (2, 1)
    await keeping.close()
    assert len(dials.closed) == 2


async def test_a_connection_that_nobody_uses_is_closed_after_a_while():
    dials = Dials()
    keeping = Keeping(dials.dial, seconds=0.01)
    await use(keeping, POD)
    with anyio.fail_after(20):
        await dials.has_closed.wait()
    await keeping.close()
    assert dials.closed == ["uid-0"]


async def test_of_too_many_connections_the_one_goes_that_was_used_least_recently():
    dials = Dials()
    keeping = Keeping(dials.dial, most=2)
    await use(keeping, POD, OTHER, POD, replace(POD, uid="uid-2"))
    await dials.has_closed.wait()
    assert dials.closed == ["uid-1"]
    await keeping.close()


async def test_verbs_and_statuses_share_a_connection(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    dialled: list[Pod] = []

    def dial(pod: Pod) -> AbstractAsyncContextManager[Any]:
        dialled.append(pod)
        return world.dial(pod)

    keeping = Keeping(dial)
    management = Management(world.cluster, keeping.dial)
    for verb in (Verb.PAUSE, Verb.RESUME):
        assert (await management.act(world.bearer(), order(verb, Kind.AGENT, "writer"))).is_done
    (status,) = await management.status(world.bearer(), Target(Kind.AGENT, NAMESPACE, "writer"))
    assert status.condition is not None
    assert len(dialled) == 1
    await keeping.close()
    assert len(agent.asked) == 2
