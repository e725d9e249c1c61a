"""Components that fail: who is told, and what still stops in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from libs.errors import UnavailableError

from ..apart import BrokenError, Watch, line_of


@asynccontextmanager
async def component(log: list[str], name: str, broken: asyncio.Event | None = None) -> AsyncIterator[str]:
    async def fail() -> None:
        assert broken
        await broken.wait()
        raise UnavailableError("the store is gone")

    try:
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(fail()) if broken else None
            yield name
            if failing:
                failing.cancel()
    finally:
        await asyncio.sleep(0)  # would raise if we were being cancelled over and over
        log.append(name)


async def test_a_failure_is_told_and_the_others_stop_in_order():
    log: list[str] = []
    watch, broken = Watch(), asyncio.Event()

    async def run() -> None:
        async with (
            watch.apart("outer", component(log, "outer")) as outer,
            watch.apart("store", component(log, "store", broken)),
            watch.apart("inner", component(log, "inner")),
        ):
            assert outer == "outer"
            broken.set()
            raise await watch.broken()

    with pytest.raises(BrokenError, match=r"^store: the store is gone$"):
        await run()
    assert log == ["store", "inner", "outer"]


async def test_one_that_does_not_start_says_why():
    @asynccontextmanager
    async def bad() -> AsyncIterator[None]:
        raise OSError(98, "Address already in use")
        yield

    log: list[str] = []
    watch = Watch()
    with pytest.raises(BrokenError, match=r"^coordination: .*Address already in use"):
        async with watch.apart("outer", component(log, "outer")), watch.apart("coordination", bad()):
            pytest.fail("it started")
    assert log == ["outer"]


async def test_one_that_does_not_stop_well_says_why():
    @asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        yield
        raise UnavailableError("it does not stop")

    with pytest.raises(BrokenError, match=r"^database: it does not stop$"):
        async with Watch().apart("database", stubborn()):
            pass


async def test_a_stop_during_the_start_undoes_it():
    log: list[str] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            log.append("undone")

    async def start() -> None:
        async with Watch().apart("slow", slow()):
            pass

    starting = asyncio.create_task(start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert log == ["undone"]


def test_the_line_names_a_bug_by_its_type():
    assert line_of(KeyError("x")) == "KeyError: 'x'"
    group = ExceptionGroup("g", [ExceptionGroup("h", [UnavailableError("two\nlines")])])
    assert line_of(group) == "two lines"
    assert line_of(FileNotFoundError(2, "No such file", "/x")) == "/x: No such file"
    assert line_of(UnavailableError()) == "UnavailableError: "
