"""Group commit: what arrives while a statement is under way goes into the next one.

A lane has one connection and one statement at a time, and no timer: a lone entry leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection

from libs.errors import UnavailableError
from libs.postgres import sever

E = TypeVar("E")
V = TypeVar("V")

MOST_ENTRIES = 500
_ANSWER_SECONDS = 8.0
_RERUNS = 5
_PAUSE_SECONDS = 0.5  # after a connection could not be made: callers are refused at once meanwhile
_SETTINGS: LiteralString = """
    set search_path = modelgateway; set statement_timeout = '5s'; set lock_timeout = '4s';
    set client_min_messages = error; set jit = off
"""
_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": 0,
    "connect_timeout": 4,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": int(_ANSWER_SECONDS * 1000),
}
_AGAIN = ("40001", "40P01")

_log = logging.getLogger(__name__)


def unavailable(error: Exception) -> UnavailableError:
    """The error that callers see."""
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return UnavailableError(f"the store of usage cannot answer: {first}")


class Session:
    """One connection, made when it is needed and made anew after an error."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: AsyncConnection[Any] | None = None
        self._down_until = 0.0
        self._down: UnavailableError | None = None

    async def run(self, statement: str, params: Sequence[object] = ()) -> list[Any]:
        """The rows of one statement, a transaction. UnavailableError; then it is unknown whether it
        happened."""
        for attempt in range(_RERUNS):
            connection = await self._ready()
            timer = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, sever, connection)
            try:
                cursor = connection.cursor()
                await cursor.execute(statement.encode(), params)
                return await cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if error.sqlstate not in _AGAIN:
                    await self.close()
                    raise unavailable(error) from error
                await asyncio.sleep(random.random() * 0.005 * 2**attempt)
            except asyncio.CancelledError:
                await self.close()
                raise
            finally:
                timer.cancel()
        raise UnavailableError("the store of usage is too busy")

    async def close(self) -> None:
        """Until it is needed again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _ready(self) -> AsyncConnection[Any]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        loop = asyncio.get_running_loop()
        if self._down is not None and loop.time() < self._down_until:
            raise self._down
        try:
            self._connection = await AsyncConnection.connect(self._conninfo, **_OPTIONS)
            await self._connection.execute(_SETTINGS, prepare=False)
        except psycopg.Error as error:
            await self.close()
            self._down, self._down_until = unavailable(error), loop.time() + _PAUSE_SECONDS
            raise self._down from error
        self._down = None
        return self._connection


class Lane(Generic[E, V]):
    """Entries through `work`, which answers each, in the order of arrival."""

    def __init__(
        self,
        name: str,
        conninfo: str,
        work: Callable[[Session, Sequence[E]], Awaitable[Sequence[V]]],
    ) -> None:
        self._session = Session(conninfo)
        self._work = work
        self._waiting: list[tuple[E, asyncio.Future[V]]] = []
        self._arrived = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._run(), name=f"lane {name}")

    async def put(self, entry: E) -> V:
        """The answer to an entry, committed. UnavailableError."""
        if self._is_closing:
            raise UnavailableError("the store of usage is closed")
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        self._arrived.set()
        return await future

    async def close(self) -> None:
        """Lets what has arrived finish."""
        self._is_closing = True
        self._arrived.set()
        await self._task
        await self._session.close()

    async def _run(self) -> None:
        while self._waiting or not self._is_closing:
            await self._arrived.wait()
            if not self._is_closing:
                self._arrived.clear()
            while self._waiting:
                batch = [each for each in self._waiting[:MOST_ENTRIES] if not each[1].done()]
                del self._waiting[:MOST_ENTRIES]
                if batch:
                    await self._flush(batch)

    async def _flush(self, batch: Sequence[tuple[E, asyncio.Future[V]]]) -> None:
        entries = [entry for entry, _ in batch]
        try:
            answers = await self._work(self._session, entries)
        except UnavailableError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(UnavailableError(str(error)))
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
