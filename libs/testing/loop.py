"""The event loop of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import uvloop


class Loop(uvloop.Loop):
    """What we deploy on, but deaf to gRPC after its end.

    A process of ours has one loop for life. Under pytest each test has its own while gRPC keeps one queue of
    events for the whole process, so that the end of a call which one test gave up comes to light in a later
    test, is handed to a loop that is closed, and fails that later test.
    """

    def call_soon_threadsafe(  # type: ignore[override]  # any callback: the types of its arguments do not matter
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As ever; but what gRPC calls on a closed loop is dropped."""
        if self.is_closed() and (getattr(callback, "__module__", None) or "").startswith("grpc."):
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)


BACKEND: tuple[str, dict[str, Any]] = ("asyncio", {"loop_factory": Loop})
"""For the fixture `anyio_backend`."""
