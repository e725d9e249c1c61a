"""Results as they come, each once, across broken streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError

from .coalesce import TRANSIENT, pauses
from .item import MAX_ENTRIES
from .parking import Parking

log = logging.getLogger(__name__)


class Results:
    """An async iterable of settled items (pb Item, payload absent) that resumes by itself.

    `cursor` is behind the last message whose items were all taken: give it to a later `results(cursor=…)`.
    """

    def __init__(self, parking: Parking, request: pb.WatchResultsRequest, ids: Sequence[str] = ()) -> None:
        if len(ids) > MAX_ENTRIES:
            raise InvalidError(violations={"ids": f"at most {MAX_ENTRIES}"})
        if not ids and not request.queue:
            raise InvalidError(violations={"queue": "name a queue, or ids"})
        self.cursor = request.cursor
        self._parking = parking
        self._request = request
        self._ids = dict.fromkeys(id.lower() for id in ids)
        self._by_id = bool(ids)

    async def __aiter__(self) -> AsyncGenerator[work_pb2.Item, None]:
        """Ends where `Client.results` says; any other error than a broken connection is raised."""
        backoff = pauses()
        while self._ids or not self._by_id:
            try:
                async with aclosing(self._messages()) as messages:
                    async for message in messages:
                        backoff = pauses()
                        for item in message.results:
                            if self._by_id:
                                if item.id not in self._ids:
                                    continue
                                del self._ids[item.id]
                            yield item
                        self.cursor = message.cursor or self.cursor
            except TRANSIENT as error:
                log.warning("results interrupted, resuming: %s", error)
                await asyncio.sleep(next(backoff))
                continue
            if not self._by_id and not self._request.follow:
                return
            await asyncio.sleep(next(backoff))  # the server drains

    async def _messages(self) -> AsyncGenerator[pb.WatchResultsResponse, None]:
        request = pb.WatchResultsRequest()
        request.CopyFrom(self._request)
        request.cursor = self.cursor
        request.item_ids.extend(self._ids)
        async with self._parking.place() as stub:
            stream = stub.WatchResults(request)
            try:
                async for message in stream:
                    yield message
            finally:
                stream.cancel()
