"""Work that its caller may leave: the doorway cancels the task of a call whose caller is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_underway: set[asyncio.Task[Any]] = set()


async def outliving(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. It goes on to its end, whatever becomes of who waits here."""
    task = asyncio.create_task(work)
    _underway.add(task)  # the event loop alone does not keep it
    task.add_done_callback(_underway.discard)
    return await asyncio.shield(task)
