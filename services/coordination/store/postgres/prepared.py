"""Prepared statements at the least cost. The driver's cursors take four times the CPU of this for one round
trip, which is what a lone caller waits for and what every flush pays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
# Of a socket with an error uvloop tells its reader once and never again, whatever is still to be read.
_LOOK_SECONDS = 0.1


class Prepared:
    """The statements of one connection, which does nothing else meanwhile; one at a time."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._results: list[PGresult] = []
        self._answered: asyncio.Future[None]
        self._socket = -1  # while it is watched
        self._timer: asyncio.TimerHandle

    async def run(self, statement: str, params: Sequence[object]) -> list[Any]:
        """The rows of a statement with `%s` for its parameters. Raises psycopg.Error."""
        transformer = Transformer(self._connection)
        values = transformer.dump_sequence(params, [PyFormat.BINARY] * len(params))
        kind = (statement, transformer.types or ())
        if (name := self._names.get(kind)) is None:
            name = b"s%d" % len(self._names)
            numbered = statement.replace("%s", "${}").format(*range(1, len(params) + 1))
            self._pgconn.send_prepare(name, numbered.encode(), kind[1])
            await self._answer()
            self._names[kind] = name
        self._pgconn.send_query_prepared(name, values, [Format.BINARY] * len(params), Format.BINARY)
        result = await self._answer()
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    async def _answer(self) -> PGresult:
        """The result of what was sent, once the server is ready again: only then it has committed."""
        loop = asyncio.get_running_loop()
        self._answered = loop.create_future()
        self._results = []
        self._socket = self._pgconn.socket
        loop.add_reader(self._socket, self._read)
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)
        try:
            if self._pgconn.flush():
                loop.add_writer(self._socket, self._write)
            await self._answered
        finally:
            self._unwatch()
        for result in self._results:
            if result.status not in _DONE:
                raise error_from_result(result, "utf-8")
        return self._results[-1]

    def _unwatch(self) -> None:
        """At once when libpq has closed the socket: a moment later its number may be another connection's."""
        if self._socket >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_writer(self._socket)
            loop.remove_reader(self._socket)
            self._socket = -1
            self._timer.cancel()

    def _finish(self, error: psycopg.Error | None) -> None:
        self._unwatch()
        if self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        self._read()

    def _read(self) -> None:
        try:
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                if (result := self._pgconn.get_result()) is None:
                    self._finish(None)
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self._finish(error)

    def _write(self) -> None:
        try:
            if not self._pgconn.flush():
                asyncio.get_running_loop().remove_writer(self._socket)
        except psycopg.Error as error:
            self._finish(error)
