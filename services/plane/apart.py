"""A component in a task of its own: its failure is told, and everything else stops in order all the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


class BrokenError(Exception):
    """A component failed; the message is a line for people, and the log has the rest."""


class Watch:
    """The components that run, to be awaited together."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], str] = {}

    @asynccontextmanager
    async def apart(self, name: str, component: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """The component, entered and left in its own task. BrokenError if it cannot start, or not stop."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        leaving = asyncio.Event()

        async def live() -> None:
            async with component as value:
                entered.set_result(value)
                await leaving.wait()

        task = asyncio.create_task(live(), name=name)
        try:
            await asyncio.wait((task, entered), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if not entered.done():
            raise _broken(name, task)
        self._tasks[task] = name
        try:
            yield entered.result()
        finally:
            leaving.set()
            await asyncio.wait((task,))
            if self._tasks.pop(task, None) and not task.cancelled() and task.exception():
                raise _broken(name, task)

    async def broken(self) -> BrokenError:
        """Returns when one of them fails: how."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        return _broken(self._tasks.pop(task), task)


def line_of(error: BaseException) -> str:
    """The first of what went wrong, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    is_bug = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {text}" if is_bug or not text else text


def _broken(name: str, task: asyncio.Task[None]) -> BrokenError:
    error: BaseException | None = None
    with suppress(asyncio.CancelledError):
        error = task.exception()
    if error is None:
        return BrokenError(f"{name} ended by itself")
    _log.error("%s failed", name, exc_info=error)
    return BrokenError(f"{name}: {line_of(error)}")
