"""Changes of resources at real MCP servers of both revisions, through lost streams and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from services.agent import tools
from services.agent.tools import Changed, Server, ServerAwayError, SubscriptionError, Toolbox
from services.agent.tools.toolbox import Changes

from .toolserver import NEW, OLD, ToolServer

A, B = "mem://a", "mem://b"


class Watch:
    """What a watch has told so far."""

    def __init__(self, box: Toolbox, uris: Sequence[str]) -> None:
        self._changes = box.watch(uris)

    async def next(self) -> str:
        async with asyncio.timeout(10):
            change = await anext(self._changes)
        assert isinstance(change, Changed)
        return change.uri

    async def close(self) -> None:
        await self._changes.aclose()  # type: ignore[attr-defined]


@pytest.fixture(params=[NEW, OLD])
def server(request) -> ToolServer:
    return ToolServer(request.param, resources={A: "1", B: "1"})


@asynccontextmanager
async def toolbox(*servers: ToolServer) -> AsyncIterator[Toolbox]:
    named = [Server(f"s{number}", each.url) for number, each in enumerate(servers)]
    async with tools.connect(named, lambda *_, **__: None) as box:
        await box.reach(timedelta(seconds=5))
        yield box


def subscriptions() -> float | None:
    return REGISTRY.get_sample_value("agent_subscriptions_active")


async def test_a_resource_is_told_at_first_and_whenever_it_changes(server):
    async with server.serving(), toolbox(server) as box:
        watch = Watch(box, [A, B])
        assert {await watch.next(), await watch.next()} == {A, B}
        assert subscriptions() == 2
        for number in range(3):
            await server.change(A, f"new {number}")
            assert await watch.next() == A
        await server.change(B, "new")
        assert await watch.next() == B
        await watch.close()
        await asyncio.sleep(0)
        assert subscriptions() == 0


async def test_changes_that_nobody_took_yet_are_one():
    changes = Changes()
    for uri in (A, B, A, A):
        changes.put(uri)
    assert [await changes.take(), await changes.take()] == [A, B]
    taking = asyncio.create_task(changes.take())
    await asyncio.sleep(0)
    assert not taking.done()
    changes.put(A)
    assert await taking == A


async def test_a_digest_tells_whether_it_is_still_the_same(server):
    async with server.serving(), toolbox(server) as box:
        text, digest = await box.read(A)
        assert (text, (await box.read(A))[1]) == ("1", digest)
        await server.change(A, "2")
        assert (await box.read(A))[0] == "2"
        assert (await box.read(A))[1] != digest


async def test_after_a_restart_everything_is_told_once_and_then_its_changes(server):
    async with server.serving():
        stack = toolbox(server)
        box = await stack.__aenter__()
        watch = Watch(box, [A, B])
        assert {await watch.next(), await watch.next()} == {A, B}
    try:
        server.resources[A] = "changed while it was away"
        async with server.serving():
            assert {await watch.next(), await watch.next()} == {A, B}
            assert (await box.read(A))[0] == "changed while it was away"
            await server.change(B, "new")
            assert await watch.next() == B
    finally:
        await watch.close()
        await stack.__aexit__(None, None, None)


async def test_a_stream_that_is_lost_is_opened_again(server):
    async with server.serving(), toolbox(server) as box:
        watch = Watch(box, [A])
        assert await watch.next() == A
        await server.cut()
        assert await watch.next() == A
        await server.change(A, "new")
        assert await watch.next() == A
        await watch.close()


async def test_the_first_server_that_gives_it_and_tells_is_watched(server):
    mute = ToolServer(server.revision, resources={A: "mute"}, tells=False)
    other = ToolServer(server.revision, resources={B: "other"})
    async with mute.serving(), other.serving(), server.serving(), toolbox(mute, other, server) as box:
        watch = Watch(box, [A, B])
        assert {await watch.next(), await watch.next()} == {A, B}
        assert await box.read(A) != ("mute", "")
        assert (await box.read(A))[0] == "1"
        assert (await box.read(B))[0] == "other"
        await other.change(B, "new")
        assert await watch.next() == B
        await watch.close()


async def test_a_resource_that_nobody_serves_is_named(server):
    async with server.serving(), toolbox(server) as box:
        with pytest.raises(SubscriptionError, match="mem://nowhere"):
            await Watch(box, [A, "mem://nowhere"]).next()
        with pytest.raises(SubscriptionError, match="mem://nowhere"):
            await box.read("mem://nowhere")
    async with toolbox() as box:
        with pytest.raises(SubscriptionError, match=A):
            await Watch(box, [A]).next()


async def test_a_server_that_is_away_is_not_taken_for_one_that_has_it_not(server):
    async with server.serving():
        stack = toolbox(server)
        box = await stack.__aenter__()
    try:
        with pytest.raises(ServerAwayError):
            await Watch(box, [A]).next()
        with pytest.raises(ServerAwayError):
            await box.read(A)
    finally:
        await stack.__aexit__(None, None, None)
