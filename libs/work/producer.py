"""Submitting to one queue, and waiting for what comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError, NotFoundError

from .client import Client
from .item import Submission, Work


class Producer:
    """One queue's submitter."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    async def submit(self, work: Work | bytes, **fields: Any) -> Submission:
        """Add an item: a Work, or a payload and the other fields of Work by name."""
        if not isinstance(work, Work):
            work = Work(work, **fields)
        return await self._client.submit(self._queue, work)

    async def submit_all(self, works: Iterable[Work]) -> list[Submission | MeshError]:
        """Add many, in order; what became of each, as a value."""
        return await self._client.submit_all(self._queue, works)

    async def result(self, id: str) -> work_pb2.Item:
        """Wait until the item is settled; its `state` says how, `result` what the worker brought."""
        async with aclosing(aiter(self._client.results(ids=[id]))) as items:
            async for item in items:
                return item
        raise NotFoundError(f"no item {id}")
