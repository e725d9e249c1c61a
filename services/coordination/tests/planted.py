"""The service with one rule broken, for those who claim to find that: `python -m
services.coordination.tests.planted BUG`. Everything else is as ever, settings included.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

from ..__main__ import main
from ..settings import Settings
from ..store import Store, Wake
from ..store.memory import MemoryStore
from ..store.memory.rows import Ended
from ..store.postgres import PostgresStore
from ..work import (
    OK,
    AckOrder,
    ClaimOrder,
    Granted,
    LeaseVerdict,
    Lost,
    NewItem,
    Results,
    Scope,
    Submitted,
    SubmitVerdict,
)


def _unlucky(id: str) -> bool:
    """One item in a hundred, by its id."""
    return zlib.crc32(id.encode()) % 100 == 0


class LosesItems(Store):
    """Accepts items that it then does not have."""

    async def submit(self, queue: str, items: Sequence[NewItem]) -> list[SubmitVerdict]:
        kept = [new for new in items if not _unlucky(new.id)]
        verdicts = iter(await super().submit(queue, kept))  # type: ignore[safe-super]
        return [
            SubmitVerdict(Submitted.ACCEPTED, new.id) if _unlucky(new.id) else next(verdicts) for new in items
        ]


class MixesResults(Store):
    """Gives each entry of an Ack the result of its neighbour."""

    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        results = [ack.result for ack in (*acks[1:], *acks[:1])]
        mixed = [replace(ack, result=result) for ack, result in zip(acks, results, strict=True)]
        return await super().ack(holder, mixed)  # type: ignore[safe-super]


class TellsTwice(Store):
    """Answers a cursor that is not behind the last result, once for each."""

    _told: ClassVar[set[str]] = set()

    async def results(
        self, *, queue: str, group: str | None, ids: frozenset[str], scope: Scope, cursor: str, limit: int
    ) -> Results:
        told = await super().results(  # type: ignore[safe-super]
            queue=queue, group=group, ids=ids, scope=scope, cursor=cursor, limit=limit
        )
        if cursor and told.items and cursor not in self._told:
            self._told.add(cursor)
            return replace(told, cursor=cursor)
        return told


class GrantsTwice(MemoryStore):
    """Leaves some items ready when they are granted."""

    async def claim(self, order: ClaimOrder) -> Granted:
        granted = await super().claim(order)
        for grant in granted.grants:
            row = self._table.rows[grant.id]
            if _unlucky(grant.id) and row.attempt == 1:
                self._table.let_go(row, Ended(order.holder, Lost.RELEASED, "", None, OK))
                self._table.offer(row, self._now(), {})
        return granted


class ReusesTokens(MemoryStore):
    """Grants with one and the same token."""

    async def claim(self, order: ClaimOrder) -> Granted:
        self._table._tokens = itertools.repeat(1 << 40)  # type: ignore[assignment]
        return await super().claim(order)


class ForgetsTokens(MemoryStore):
    """Counts tokens from one on every start."""

    def __init__(self, wake: Wake) -> None:
        super().__init__(wake)
        self._table._tokens = itertools.count(1)


class AcksAnyToken(MemoryStore):
    """Lets whoever held an item settle it."""

    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        verdicts = []
        for ack in acks:
            row = self._table.rows.get(ack.id)
            owner = holder if row is None or row.holder is None else row.holder
            order = ack if row is None else replace(ack, token=row.token)
            verdicts += await super().ack(owner, [order])
        return verdicts


class ForgivesExpiry(MemoryStore):
    """Counts no attempt for a lease that ran out."""

    def sweep(self) -> None:
        self._table._outage_end = self._clock() + 1
        super().sweep()


class GrantsTwiceOnPostgres(PostgresStore):
    """Leaves some items ready when they are granted."""

    async def claim(self, order: ClaimOrder) -> Granted:
        granted = await super().claim(order)
        back = [grant.id for grant in granted.grants if _unlucky(grant.id) and grant.attempt == 1]
        if back:
            await self._direct(
                "update item set state = 1, lease_until = null, claim_key = null where id = any(%s::uuid[])"
                " returning id",
                (back,),
            )
        return granted


class AcksAnyTokenOnPostgres(PostgresStore):
    """Lets whoever held an item settle it."""

    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        ids = [ack.id for ack in acks]
        found = await self._direct(
            "select id::text, token, holder from item where id = any(%s::uuid[])", (ids,)
        )
        now = {id: (token, owner) for id, token, owner in found}
        verdicts = []
        for ack in acks:
            token, owner = now.get(ack.id, (ack.token, holder))
            verdicts += await super().ack(owner or holder, [replace(ack, token=token)])
        return verdicts


MEMORY: Mapping[str, Any] = {
    "lost": LosesItems,
    "mixed-results": MixesResults,
    "told-twice": TellsTwice,
    "double-grant": GrantsTwice,
    "token-reuse": ReusesTokens,
    "token-restart": ForgetsTokens,
    "ack-any-token": AcksAnyToken,
    "uncounted": ForgivesExpiry,
}
POSTGRES: Mapping[str, Any] = {
    "lost": LosesItems,
    "mixed-results": MixesResults,
    "told-twice": TellsTwice,
    "double-grant": GrantsTwiceOnPostgres,
    "ack-any-token": AcksAnyTokenOnPostgres,
}


@asynccontextmanager
async def broken(settings: Settings, wake: Wake, bug: str) -> AsyncIterator[Store]:
    """The store of the settings, with this bug."""
    if settings.store == "memory":
        made = MEMORY[bug]
        kind: Any = made if issubclass(made, MemoryStore) else type(bug, (made, MemoryStore), {})
        yield kind(wake)
        return
    assert settings.database_file is not None
    made = POSTGRES[bug]
    lasting: Any = made if issubclass(made, PostgresStore) else type(bug, (made, PostgresStore), {})
    async with lasting.open(settings.database_file.read_text().strip(), wake) as store:
        yield store


if __name__ == "__main__":
    bug = sys.argv.pop()
    if bug not in MEMORY:
        sys.exit(f"{bug!r} is none of {', '.join(MEMORY)}")
    main(lambda settings, wake: broken(settings, wake, bug))
