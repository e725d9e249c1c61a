"""Usage in PostgreSQL: exact across replicas, and a commit for all that arrives while one is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from libs.postgres import migrate

from ...budgets import Hold, Key, Record, Refusal, Request, Scope, Spend, Usage
from .. import Page, Store, after, keys_of
from .lanes import Lane, Session, unavailable

SCHEMA = "modelgateway"
_MIGRATIONS = Path(__file__).parent.parent / "migrations"
_FIELDS, _KEY_FIELDS = Record.__slots__, Key.__slots__
_log = logging.getLogger(__name__)


class PostgresStore(Store):
    """Three connections: for reserving, for settling, and for reading."""

    def __init__(self, conninfo: str, retention: timedelta) -> None:
        self._retention = retention
        self._reserving: Lane[Request, Hold | Refusal] = Lane("reserving", conninfo, _reserve)
        self._settling: Lane[Spend, None] = Lane("settling", conninfo, _settle)
        self._reading = Session(conninfo)
        self._turn = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, conninfo: str, retention: timedelta) -> AsyncIterator[PostgresStore]:
        """With its schema brought forward; UnavailableError if the database cannot be reached or is newer."""
        try:
            await migrate(conninfo, _MIGRATIONS, SCHEMA)
        except psycopg.Error as error:
            raise unavailable(error) from error
        store = cls(conninfo, retention)
        async with AsyncExitStack() as stack:
            for closing in (store._reading.close, store._settling.close, store._reserving.close):
                stack.push_async_callback(closing)
            yield store

    async def reserve(self, request: Request) -> Hold | Refusal:
        return await self._reserving.put(request)

    async def settle(self, spend: Spend) -> None:
        await self._settling.put(spend)

    async def usage(self, namespace: str, pool: str = "") -> list[Usage]:
        rows = await self._read(
            """select pool, scope, name, window_s, starts_at, used, reserved from bucket
               where namespace = %s and (%s = '' or pool = %s) and used + reserved > 0
                 and (window_s = 0 or starts_at + window_s > extract(epoch from clock_timestamp()))
               order by pool, scope, name, window_s""",
            [namespace, pool, pool],
        )
        return [
            Usage(
                Key(namespace, row[0], Scope(row[1]), row[2], row[3]),
                row[5],
                row[6],
                row[4] + row[3] if row[3] else None,
            )
            for row in rows
        ]

    async def calls(
        self, namespace: str, pool: str = "", agent: str = "", *, size: int = 100, token: str = ""
    ) -> Page:
        rows = await self._read(
            f"""select id, {", ".join(_FIELDS)} from call
                where namespace = %s and id < %s and (%s = '' or pool = %s)
                  and (%s = '' or agent = %s or fleet = %s)
                order by id desc limit %s""",
            [namespace, after(token), pool, pool, agent, agent, agent, size + 1],
        )
        records = [Record(*row[1:]) for row in rows[:size]]
        return Page(records, str(rows[size - 1][0]) if len(rows) > size else "")

    async def tidy(self) -> int:
        ((expired,),) = await self._read("select expire()")
        seconds = self._retention.total_seconds()
        await self._read(
            "delete from call where started_at < extract(epoch from clock_timestamp()) - %s", [seconds]
        )
        await self._read(
            """delete from bucket where window_s > 0 and reserved = 0
               and starts_at + window_s < extract(epoch from clock_timestamp()) - %s""",
            [seconds],
        )
        return int(expired)

    async def check(self) -> None:
        await self._read("select 1")

    async def _read(self, statement: str, params: Sequence[object] = ()) -> list[Any]:
        async with self._turn:
            return await self._reading.run(statement, params)


def _json(things: Sequence[object]) -> str:
    return msgspec.json.encode(things).decode()


def _wanted(keys: Sequence[Key]) -> str:
    return _json([{"n": n, **_fields(key, _KEY_FIELDS)} for n, key in enumerate(keys)])


def _fields(thing: object, names: Sequence[str]) -> dict[str, Any]:
    """`dataclasses.asdict` takes a tenth of a call."""
    return {name: getattr(thing, name) for name in names}


async def _reserve(session: Session, requests: Sequence[Request]) -> list[Hold | Refusal]:
    keys = keys_of(requests)
    places = {key: n for n, key in enumerate(keys, 1)}
    asked = [
        {
            "n": n,
            "id": each.id,
            "tokens": each.tokens,
            "seconds": each.seconds,
            "keys": [places[budget.key] for budget in each.budgets],
            "limits": [budget.limit for budget in each.budgets],
        }
        for n, each in enumerate(requests)
    ]
    rows = await session.run("select * from reserve(%s, %s)", [_wanted(keys), _json(asked)])
    return [
        Hold(request.id, request.tokens, tuple(buckets))
        if refused is None
        else Refusal(request.budgets[refused - 1], used, reserved, now)
        for request, (refused, used, reserved, buckets, now) in zip(requests, rows, strict=True)
    ]


async def _settle(session: Session, spends: Sequence[Spend]) -> list[None]:
    keys = keys_of(each for each in spends if each.hold is None)
    places = {key: n for n, key in enumerate(keys, 1)}
    told = [
        {
            "id": each.id,
            "hold": each.hold and each.hold.id,
            "tokens": each.tokens,
            "buckets": each.hold.buckets if each.hold else (),
            "keys": () if each.hold else [places[budget.key] for budget in each.budgets],
        }
        for each in spends
    ]
    records = [
        {"ref": each.id, **_fields(each.record, _FIELDS)} for each in spends if each.record is not None
    ]
    await session.run("call book(%s, %s, %s)", [_json(told), _wanted(keys), _json(records)])
    return [None] * len(spends)
