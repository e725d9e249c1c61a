"""Telling other replicas what changed, by NOTIFY, and hearing it from them.

It goes on a connection of its own after the commit: inside the flush it would take PostgreSQL's one lock
for committing notifications, and lanes would wait for each other's disk. What is lost with a connection
is made up by a look at everything when it is back, and by the polling of those who wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import AsyncConnection

from libs.errors import UnavailableError
from libs.postgres import sever

from .session import Conninfo, Fault, Link, command, connect, fault

log = logging.getLogger(__name__)

CHANNEL = "coordination"
PROBE_SECONDS = 4.0
MOST_BYTES = 7900
PAUSE_SECONDS = 0.02  # between two notifications, which all replicas pay for; a lone one leaves at once

Heard = Callable[[str, int, int | None], None]


class Wakes:
    """Both directions. Told and heard are: queue, how many items, the lowest new place among the ready."""

    def __init__(self, conninfo: Conninfo, heard: Heard) -> None:
        self._conninfo = conninfo
        self._heard = heard
        self._me = uuid4().hex[:12]
        self._pending: dict[str, tuple[int, int | None]] = {}
        self._told = asyncio.Event()
        self._link = Link(conninfo, lambda: None)
        self._listening: AsyncConnection[Any] | None = None
        self._tasks = [asyncio.create_task(self._speak()), asyncio.create_task(self._listen())]

    def tell(self, queue: str, n: int, lowest: int | None) -> None:
        """Tell the other replicas, together with what else is to tell."""
        known = self._pending.get(queue)
        if known is not None:
            n += known[0]
            lowest = known[1] if lowest is None else lowest if known[1] is None else min(lowest, known[1])
        self._pending[queue] = (n, lowest)
        self._told.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self._link.drop()

    async def _speak(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            told, self._pending = self._pending, {}
            try:
                for payload in self._payloads(told):
                    await self._link.run("select pg_notify(%s, %s)", (CHANNEL, payload))
            except (psycopg.Error, UnavailableError) as error:
                log.warning("other replicas were not told: %s", error)
            await asyncio.sleep(PAUSE_SECONDS)

    def _payloads(self, told: dict[str, tuple[int, int | None]]) -> Iterator[str]:
        payload = self._me
        for queue, (n, lowest) in told.items():
            line = f"\n{queue} {n} {'' if lowest is None else lowest}"
            if len(payload) + len(line) > MOST_BYTES:
                yield payload
                payload = self._me
            payload += line
        yield payload

    async def _listen(self) -> None:
        pause = 0.05
        while True:
            try:
                connection = await connect(self._conninfo)
                try:
                    # Those that come with an answer.
                    connection.add_notify_handler(lambda notify: self._note(notify.payload))
                    await command(connection, "listen coordination")
                    self._heard("", 0, None)
                    pause = 0.05
                    await self._hear(connection)
                finally:
                    sever(connection)
                    await connection.close()
            except (psycopg.Error, OSError) as error:
                if isinstance(error, psycopg.Error) and fault(error) is Fault.OURS:
                    raise
                log.info("listening again in %.2f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)

    async def _hear(self, connection: AsyncConnection[Any]) -> None:
        while True:
            await self._quiet(connection)
            await command(connection, "select 1", within=PROBE_SECONDS)  # a dead connection is silent too

    async def _quiet(self, connection: AsyncConnection[Any]) -> None:
        """Hear what comes, until it is time to ask or the connection is lost. The driver's own iterator would
        look ten times a second.
        """
        loop = asyncio.get_running_loop()
        pgconn, socket = connection.pgconn, connection.fileno()
        lost = asyncio.Event()

        def read() -> None:
            try:
                pgconn.consume_input()
            except psycopg.Error:
                loop.remove_reader(socket)  # at once: its number may soon be another connection's
                lost.set()
                return
            while (notify := pgconn.notifies()) is not None:
                self._note(notify.extra.decode())

        loop.add_reader(socket, read)
        read()  # what came with the last answer
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await lost.wait()
        finally:
            if not lost.is_set():
                loop.remove_reader(socket)

    def _note(self, payload: str) -> None:
        speaker, *lines = payload.split("\n")
        if speaker == self._me:
            return
        for line in lines:
            queue, n, lowest = line.split(" ")
            self._heard(queue, int(n), int(lowest) if lowest else None)
