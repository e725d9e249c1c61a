"""Connections of the store: their settings, what their errors mean, and a limit on every wait."""

from __future__ import annotations

import asyncio
import logging
import random
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection

from libs.errors import UnavailableError
from libs.postgres import sever

from . import arrays
from .prepared import Prepared

log = logging.getLogger(__name__)

SCHEMA = "coordination"
STATEMENT_SECONDS = 5.0
ANSWER_SECONDS = 8.0  # a connection that is silent for longer is given up
_SETTINGS: LiteralString = """
    set search_path = coordination;
    set statement_timeout = '5s'; set lock_timeout = '4s'; set idle_in_transaction_session_timeout = '5s';
    set jit = off; set client_min_messages = error; set max_parallel_workers_per_gather = 0;
    -- The planner must not leave the indexes whatever it believes to know about the tables.
    set enable_bitmapscan = off; set enable_seqscan = off;
    set enable_hashjoin = off; set enable_mergejoin = off; set plan_cache_mode = force_generic_plan;
"""

Conninfo = str | Callable[[], str]


class Fault(Enum):
    """What an error of the database means for the statement it met."""

    ENTRY = "something in the statement was refused; nothing of it happened"
    AGAIN = "it collided with others; nothing of it happened"
    LOST = "the connection is of no more use; it is unknown what happened"
    OURS = "the statement is wrong"


def fault(error: psycopg.Error) -> Fault:
    """Sort an error by its SQLSTATE."""
    state = error.sqlstate or ""
    if state in ("40001", "40P01"):
        return Fault.AGAIN
    if state[:2] in ("21", "22", "23", "54"):
        return Fault.ENTRY
    if (
        not state
        or state[:2] in ("08", "53", "55", "57", "58", "25", "XX")
        or isinstance(error, psycopg.OperationalError)
    ):
        return Fault.LOST
    return Fault.OURS


def unavailable(error: Exception) -> UnavailableError:
    """The error that callers see."""
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return UnavailableError(f"the store cannot answer: {first}")


OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 4,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": int(ANSWER_SECONDS * 1000),
}


async def connect(conninfo: Conninfo, *, grants: bool = False) -> AsyncConnection[Any]:
    """A connection that can write. Raises psycopg.Error."""
    connection: AsyncConnection[Any] = await AsyncConnection.connect(
        conninfo if isinstance(conninfo, str) else conninfo(), **OPTIONS
    )
    async with AsyncExitStack() as unless_done:
        unless_done.push_async_callback(connection.close)
        await prepare(connection)
        if grants:
            await command(connection, "select epoch_1()")
        unless_done.pop_all()
    return connection


async def prepare(connection: AsyncConnection[Any]) -> None:
    """Make a connection one of ours, or refuse it."""
    arrays.register(connection)
    await command(connection, _SETTINGS)
    ((reading,),) = await command(connection, "select pg_is_in_recovery()")
    if reading:
        raise psycopg.errors.ReadOnlySqlTransaction("this server is a read-only replica")


async def alive(connection: AsyncConnection[Any]) -> None:
    """Raise psycopg.Error unless the server answers here, now."""
    await command(connection, "", within=1.0)


async def command(
    connection: AsyncConnection[Any],
    statement: LiteralString,
    params: Sequence[object] | Mapping[str, object] | None = None,
    *,
    within: float = ANSWER_SECONDS,
) -> list[Any]:
    """The rows of a statement. The socket is cut when there is no answer in time."""
    timer = asyncio.get_running_loop().call_later(within, sever, connection)
    try:
        cursor = connection.cursor(binary=params is not None)
        await cursor.execute(statement, params)
        return await cursor.fetchall() if cursor.description else []
    finally:
        timer.cancel()


class Link:
    """One connection that is made when needed and made anew after a fault, with a growing pause."""

    def __init__(self, conninfo: Conninfo, renewed: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._renewed = renewed
        self._connection: AsyncConnection[Any] | None = None
        self._prepared: Prepared
        self._poll = select.poll()
        self._pause = 0.0
        self._down_until = 0.0
        self._down: UnavailableError | None = None

    async def run(self, statement: LiteralString, params: Sequence[object]) -> list[Any]:
        """Execute a prepared statement. Raises psycopg.Error; UnavailableError while there is no server."""
        connection = await self._ready()
        timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, sever, connection)
        try:
            return await self._prepared.run(statement, params)
        except psycopg.Error as error:
            if fault(error) is Fault.LOST:
                log.warning("lost a connection: %s", unavailable(error))
                await self.drop()
            raise
        except asyncio.CancelledError:
            await self.drop()
            raise
        finally:
            timer.cancel()

    @property
    def calm(self) -> bool:
        """Whether there is a connection, and nothing to be heard on it: not even its end."""
        return self._connection is not None and not self._poll.poll(0)

    async def drop(self) -> None:
        """Give the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            sever(connection)
            await connection.close()

    async def _ready(self) -> AsyncConnection[Any]:
        connection = self._connection
        if connection is not None:
            if not self._poll.poll(0):
                return connection
            await self.drop()  # an idle connection that has something to say has lost its server
        now = asyncio.get_running_loop().time()
        if self._down is not None and now < self._down_until:
            raise UnavailableError(str(self._down))
        try:
            connection = await connect(self._conninfo, grants=True)
        except (psycopg.Error, OSError) as error:
            self._pause = min(1.0, max(0.05, self._pause * 2))
            self._down_until = asyncio.get_running_loop().time() + self._pause * (0.5 + random.random())
            self._down = unavailable(error)
            raise self._down from error
        self._pause, self._down = 0.0, None
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        self._connection, self._prepared = connection, Prepared(connection)
        self._renewed()
        return connection
