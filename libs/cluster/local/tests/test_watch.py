"""Watches: every change once and in order, resumed anywhere that history reaches."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import anyio
import pytest

from libs.cluster import Change, ExpiredError
from libs.cluster.kinds import CONFIG_MAP, NAMESPACE, POD
from libs.cluster.local import open_local, store
from libs.errors import InvalidError

from .things import config_map, pod, take, thing


async def test_a_watch_tells_every_change_after_its_revision(cluster):
    since = (await cluster.list(CONFIG_MAP)).revision
    await cluster.create(config_map("a"))
    async with aclosing(cluster.watch(CONFIG_MAP, since=since)) as changes:
        assert await take(changes, 1) == [("ADDED", "a")]
        await cluster.create(pod())
        await cluster.create(config_map("b"))
        await cluster.apply(config_map("a", data={"x": "1"}), "me")
        await cluster.apply(config_map("a", data={"x": "1"}), "me")
        await cluster.delete(CONFIG_MAP, "default", "b")
        assert await take(changes, 3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_a_watch_wakes_up_for_what_comes(cluster):
    since = (await cluster.list(CONFIG_MAP)).revision
    seen: asyncio.Queue[Change] = asyncio.Queue()

    async def watch():
        async with aclosing(cluster.watch(CONFIG_MAP, since=since)) as changes:
            async for change in changes:
                seen.put_nowait(change)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with anyio.fail_after(10):
            for name in "abc":
                made = await cluster.create(config_map(name))
                assert (await seen.get()).object == made
        tasks.cancel_scope.cancel()


async def test_a_watch_of_a_namespace_or_a_selector_sees_no_more(cluster):
    await cluster.create(thing(NAMESPACE, "other"))
    since = (await cluster.list(CONFIG_MAP)).revision
    await cluster.create(config_map("a", "other", labels={"tier": "x"}))
    await cluster.create(config_map("b", labels={"tier": "y"}))
    await cluster.create(config_map("c", labels={"tier": "x"}))
    async with aclosing(cluster.watch(CONFIG_MAP, "default", since=since)) as changes:
        assert await take(changes, 2) == [("ADDED", "b"), ("ADDED", "c")]
    async with aclosing(cluster.watch(CONFIG_MAP, "", "tier=x", since=since)) as changes:
        assert await take(changes, 2) == [("ADDED", "a"), ("ADDED", "c")]


async def test_what_comes_into_view_is_added_and_what_leaves_it_deleted(cluster):
    since = (await cluster.list(CONFIG_MAP)).revision
    async with aclosing(cluster.watch(CONFIG_MAP, labels="tier=x", since=since)) as changes:
        for tier in ("y", "x", "x", "y", "x"):
            await cluster.apply(config_map("a", labels={"tier": tier}, data={"n": tier}), "me")
        await cluster.apply(config_map("a", labels={"tier": "x"}, data={"n": "more"}), "me")
        await cluster.delete(CONFIG_MAP, "default", "a")
        seen = [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert await take(changes, 5) == seen


async def test_a_watch_from_nowhere_begins_with_what_is_there(cluster):
    await cluster.create(config_map("a"))
    async with aclosing(cluster.watch(CONFIG_MAP)) as changes:
        assert await take(changes, 1) == [("ADDED", "a")]
        await cluster.create(config_map("b"))
        assert await take(changes, 1) == [("ADDED", "b")]


async def test_a_watch_resumes_after_the_home_was_reopened(folder):
    async with open_local(folder) as cluster:
        since = (await cluster.list(CONFIG_MAP)).revision
        await cluster.create(config_map("a"))
    async with open_local(folder) as cluster:
        await cluster.create(config_map("b"))
        changes = cluster.watch(CONFIG_MAP, since=since)
        assert await take(changes, 2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_ends_when_the_home_closes(folder):
    ended = asyncio.Event()

    async def watch(cluster, since):
        async for _ in cluster.watch(CONFIG_MAP, since=since):
            pass
        ended.set()

    async with anyio.create_task_group() as tasks:
        async with open_local(folder) as cluster:
            tasks.start_soon(watch, cluster, (await cluster.list(CONFIG_MAP)).revision)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            await ended.wait()


@pytest.fixture
def short_history(monkeypatch):
    monkeypatch.setattr(store, "HISTORY", 5)


async def test_a_watch_of_forgotten_changes_is_expired(short_history, cluster):
    since = (await cluster.list(CONFIG_MAP)).revision
    for number in range(10):
        await cluster.create(config_map(f"a-{number}"))
    with pytest.raises(ExpiredError):
        await anext(cluster.watch(CONFIG_MAP, since=since))
    async with aclosing(cluster.watch(CONFIG_MAP, since=str(int(since) + 5))) as changes:
        assert await take(changes, 5) == [("ADDED", f"a-{number}") for number in range(5, 10)]


async def test_a_watch_of_a_quiet_kind_does_not_expire(short_history, cluster):
    made = await cluster.create(pod())
    async with aclosing(cluster.watch(POD, since=made["metadata"]["resourceVersion"])) as changes:
        async with anyio.create_task_group() as tasks:
            seen = []

            async def one():
                seen.extend(await take(changes, 1))

            tasks.start_soon(one)
            for number in range(10):
                await cluster.create(config_map(f"a-{number}"))
            await cluster.create(pod("another"))
        assert seen == [("ADDED", "another")]


async def test_a_watch_of_a_quiet_namespace_does_not_expire(short_history, cluster):
    await cluster.create(thing(NAMESPACE, "other"))
    since = (await cluster.list(CONFIG_MAP)).revision
    async with aclosing(cluster.watch(CONFIG_MAP, "default", since=since)) as changes:
        async with anyio.create_task_group() as tasks:
            seen = []

            async def one():
                seen.extend(await take(changes, 1))

            tasks.start_soon(one)
            for number in range(10):
                await anyio.wait_all_tasks_blocked()
                await cluster.create(config_map(f"a-{number}", "other"))
            await cluster.create(config_map("b"))
        assert seen == [("ADDED", "b")]


async def test_a_watcher_that_is_too_slow_is_expired(short_history, cluster):
    async with aclosing(
        cluster.watch(CONFIG_MAP, since=(await cluster.list(CONFIG_MAP)).revision)
    ) as changes:
        await cluster.create(config_map("a"))
        assert await take(changes, 1) == [("ADDED", "a")]
        for number in range(10):
            await cluster.create(config_map(f"a-{number}"))
        with pytest.raises(ExpiredError):
            await take(changes, 1)


async def test_forgotten_changes_stay_forgotten_after_reopening(short_history, folder):
    async with open_local(folder) as cluster:
        since = (await cluster.list(CONFIG_MAP)).revision
        for number in range(10):
            await cluster.create(config_map(f"a-{number}"))
    async with open_local(folder) as cluster:
        with pytest.raises(ExpiredError):
            await anext(cluster.watch(CONFIG_MAP, since=since))


async def test_a_revision_of_the_future_is_expired_and_nonsense_refused(cluster):
    newest = int((await cluster.list(CONFIG_MAP)).revision)
    with pytest.raises(ExpiredError):
        await anext(cluster.watch(CONFIG_MAP, since=str(newest + 1)))
    with pytest.raises(InvalidError):
        await anext(cluster.watch(CONFIG_MAP, since="yesterday"))


async def test_large_changes_are_forgotten_sooner(monkeypatch, cluster):
    monkeypatch.setattr(store, "HISTORY_BYTES", 50_000)
    since = (await cluster.list(CONFIG_MAP)).revision
    for number in range(10):
        await cluster.create(config_map(f"a-{number}", data={"x": "x" * 10_000}))
    with pytest.raises(ExpiredError):
        await anext(cluster.watch(CONFIG_MAP, since=since))
    async with aclosing(cluster.watch(CONFIG_MAP, since=str(int(since) + 6))) as changes:
        assert await take(changes, 4) == [("ADDED", f"a-{number}") for number in range(6, 10)]


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "\u0661", "\u00b2", "1" * 20, "1" * 5_000, "1 "])
async def test_a_revision_is_a_number(cluster, since):
    with pytest.raises(InvalidError):
        await anext(cluster.watch(CONFIG_MAP, since=since))
