"""A store in PostgreSQL: durable, and many replicas may use one at once.

The rules are functions in the database (`../migrations`), each made once and never changed: a newer program
brings newer ones and calls those. Changes go through three lanes of group commit (`flush`); readers have a
small pool of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from libs.errors import ExhaustedError, InternalError, InvalidError, NotFoundError, UnavailableError
from libs.postgres import migrate

from ...work import (
    AckOrder,
    CancelVerdict,
    ClaimOrder,
    FailOrder,
    Granted,
    Item,
    ItemFilter,
    Lease,
    LeaseVerdict,
    NewItem,
    Page,
    Policy,
    Purged,
    QueueStats,
    Redriven,
    Results,
    Scope,
    Sharding,
    State,
    SubmitVerdict,
    amend,
)
from .. import EVERYBODY, Store, Wake
from . import look, rows, verbs
from .flush import Lane
from .session import OPTIONS, SCHEMA, Conninfo, Fault, Link, alive, command, fault, prepare, unavailable
from .upkeep import Upkeep
from .wakes import Wakes
from .watermarks import Watermarks

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent.parent / "migrations"
NAMESPACE_QUEUES = 1000
POLICY_SECONDS = 1.0
_HELD: LiteralString = """
    select coalesce(sum(leased), 0)::int8 from (
        select leased from counter where queue_id = %s
        union all select leased from counter_delta where queue_id = %s) c"""


class PostgresStore(Store):
    """Made by `open`."""

    def __init__(self, conninfo: Conninfo, wake: Wake, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__(wake)
        self._pool = pool
        self._lows = Watermarks()
        self._ids: dict[str, int] = {}
        self._policies: dict[str, tuple[float, Policy]] = {}
        self._asked: dict[str, asyncio.Task[Policy | None]] = {}
        self._wakes = Wakes(conninfo, self._heard)
        self._upkeep = Upkeep(Link(conninfo, self._renewed), self._woken)
        self._submits, self._claims, self._settles = (
            Lane(name, Link(conninfo, self._renewed)) for name in ("submit", "claim", "settle")
        )
        self._submit = verbs.submit(self._woken)
        self._claim = verbs.claim(self._woken, self._lows, self._undo)
        self._ack = verbs.ack(self._woken)
        self._renew = verbs.renew(self._upkeep.stir)
        self._fail = verbs.fail(self._woken)
        self._release = verbs.release(self._woken, undo=False)
        self._take_back = verbs.release(self._woken, undo=True)
        self._release_worker = verbs.release_worker(self._woken)
        self._cancel = verbs.cancel(self._woken)

    @classmethod
    @asynccontextmanager
    async def open(cls, conninfo: Conninfo, wake: Wake) -> AsyncIterator[PostgresStore]:
        """A store on the database of this DSN (or of the one that a function gives, asked for every
        connection), its schema brought up to date. Raises UnavailableError.
        """
        try:
            await migrate(conninfo if isinstance(conninfo, str) else conninfo(), MIGRATIONS, SCHEMA)
        except (psycopg.Error, OSError) as error:
            raise unavailable(error) from error
        async with AsyncExitStack() as stack:
            pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
                conninfo,
                kwargs=OPTIONS,
                configure=prepare,
                check=alive,
                min_size=1,
                max_size=4,
                timeout=4,
                reconnect_timeout=2,  # then whoever asks tries anew; a doubling pause outlasts outages
                open=False,
            )
            await stack.enter_async_context(pool)
            store = cls(conninfo, wake, pool)
            for part in (store._wakes, store._submits, store._claims, store._settles):
                stack.push_async_callback(part.close)
            stack.push_async_callback(store._upkeep.close)
            yield store

    # --- Waking ---

    def _woken(self, queue: str, n: int, lowest: int | None) -> None:
        """A change of ours has committed."""
        self._upkeep.stir()
        self._lower(queue, lowest)
        self._wakes.tell(queue, n, lowest)
        self._wake(queue, n)

    def _heard(self, queue: str, n: int, lowest: int | None) -> None:
        """Another replica's change has committed; an empty name: some may have been missed."""
        if not queue:
            self._renewed()
        elif queue not in self._ids:
            self._policies.pop(queue, None)
        self._lower(queue, lowest)
        self._wake(queue, n)

    def _lower(self, queue: str, lowest: int | None) -> None:
        if lowest is not None and (id := self._ids.get(queue)) is not None:
            self._lows.lower(id, lowest)

    def _renewed(self) -> None:
        """A connection was made, perhaps to a server that knows less."""
        self._ids.clear()
        self._policies.clear()
        self._lows.forget()

    # --- Work ---

    async def submit(self, queue: str, items: Sequence[NewItem]) -> list[SubmitVerdict]:
        id = await self._made(queue)
        known = self._policies.get(queue)
        shards = Sharding() if known is None else known[1].shards
        entries = [verbs.Submission(id, queue, new, shards) for new in items]
        return await self._submits.call(self._submit, _space(queue), entries)

    async def claim(self, order: ClaimOrder) -> Granted:
        id = await self._id(order.queue)
        if id is None:
            return Granted(())
        key = None if order.request_id is None else _key(order.holder, order.request_id)
        entry = verbs.claiming(id, key, order)
        (granting,) = await self._claims.call(self._claim, _space(order.queue), [entry])
        if granting.changed:
            raise InvalidError(violations={"request_id": "was used before with other arguments"})
        if granting.shards is not None:
            granting.shards.check(order.queue, order.shard)
        return Granted(tuple(granting.grants), granting.more or granting.moving)

    def _undo(self, orders: Sequence[verbs.Claiming], grantings: Sequence[verbs.Granting]) -> None:
        for entry, granting in zip(orders, grantings, strict=True):
            if granting.grants:
                holder = entry.order.holder
                back = [(holder, Lease(grant.id, grant.token)) for grant in granting.grants]
                with suppress(UnavailableError):  # closed: the leases run out
                    self._settles.put(self._take_back, holder, back)

    async def take_back(self, holder: str, leases: Sequence[Lease]) -> None:
        await self._settles.call(self._take_back, holder, [(holder, lease) for lease in leases])

    async def renew(self, holder: str, leases: Sequence[Lease], lease_ms: int | None) -> list[LeaseVerdict]:
        return await self._settles.call(self._renew, holder, [(holder, lease, lease_ms) for lease in leases])

    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        return await self._settles.call(self._ack, holder, [(holder, order) for order in acks])

    async def fail(self, holder: str, failures: Sequence[FailOrder]) -> list[LeaseVerdict]:
        return await self._settles.call(self._fail, holder, [(holder, order) for order in failures])

    async def release(self, holder: str, leases: Sequence[Lease], reason: str) -> list[LeaseVerdict]:
        return await self._settles.call(self._release, holder, [(holder, lease) for lease in leases])

    async def cancel(self, ids: Sequence[str], reason: str, scope: Scope) -> list[CancelVerdict]:
        entries = [verbs.Canceling(id, reason, scope) for id in ids]
        return await self._settles.call(self._cancel, scope.namespace or "", entries)

    async def release_worker(self, namespace: str, uid: str, reason: str) -> int:
        released = 0
        while True:
            (count,) = await self._settles.call(self._release_worker, namespace, [(namespace, uid)])
            released += count
            if not count:
                return released

    # --- Looking ---

    async def standing(self, ids: Sequence[str], scope: Scope) -> dict[str, tuple[str, State]]:
        return await look.standing(self._read, ids, scope)

    async def items(self, ids: Sequence[str], scope: Scope, *, with_payload: bool = False) -> list[Item]:
        return await look.items(self._read, ids, scope, with_payload=with_payload)

    async def list_items(
        self, queue: str, matching: ItemFilter, scope: Scope, *, size: int, token: str
    ) -> Page:
        id = await self._id(queue)
        if id is None:
            return Page(())
        return await look.list_items(self._read, id, matching, scope, size=size, token=token)

    async def results(
        self, *, queue: str, group: str | None, ids: frozenset[str], scope: Scope, cursor: str, limit: int
    ) -> Results:
        id = await self._id(queue) if queue else None
        return await look.results(
            self._read, queue=id, group=group, ids=ids, scope=scope, cursor=cursor, limit=limit
        )

    async def unsettled(self, *, queue: str, group: str | None, scope: Scope) -> int:
        if scope.namespace not in (None, _space(queue)):
            return 0
        if group is None and scope.submitter is None and scope.holder is None:
            return min(1000, sum(stats.backlog for stats in await self.queues([queue], None)))
        id = await self._id(queue)
        return 0 if id is None else await look.unsettled(self._read, queue=id, group=group, scope=scope)

    async def _read(self, statement: LiteralString, params: Mapping[str, object]) -> list[Any]:
        return await self._direct(statement, params)

    async def _direct(
        self, statement: LiteralString, params: Mapping[str, object] | Sequence[object]
    ) -> list[Any]:
        """Run a statement on a connection of the pool, again if it collided with another."""
        for last in (False, False, True):
            try:
                async with self._pool.connection() as connection:
                    return await command(connection, statement, params)
            except PoolTimeout as error:
                raise UnavailableError("the store cannot answer: no connection") from error
            except psycopg.Error as error:
                if fault(error) is Fault.AGAIN and not last:
                    continue
                if fault(error) in (Fault.LOST, Fault.AGAIN):
                    raise unavailable(error) from error
                raise InternalError("the store refused this") from error
        raise AssertionError("the last try has answered or raised")

    # --- Queues ---

    async def _id(self, queue: str) -> int | None:
        if (known := self._ids.get(queue)) is not None:
            return known
        found = await self._direct("select id from queue where name = %s", (queue,))
        if not found:
            return None
        self._ids[queue] = id = int(found[0][0])
        return id

    async def _made(self, queue: str) -> int:
        """Its id, making it if it is new."""
        if (known := self._ids.get(queue)) is not None:
            return known
        asked = (queue, rows.policy_text(Policy()), NAMESPACE_QUEUES)
        ((id, made),) = await self._direct("select * from make_queue_1(%s, %s::jsonb, %s)", asked)
        if id is None:
            raise ExhaustedError(f"namespace {_space(queue)} has its most queues ({NAMESPACE_QUEUES})")
        self._ids[queue] = int(id)
        if made:
            self._woken(queue, 0, None)
        return int(id)

    async def queues(self, names: Sequence[str] | None, namespace: str | None) -> list[QueueStats]:
        return await look.queues(self._read, names, namespace)

    async def policy(self, queue: str) -> Policy | None:
        now = asyncio.get_running_loop().time()
        cached = self._policies.get(queue)
        if cached is not None and now - cached[0] < POLICY_SECONDS:
            return cached[1]
        if (asked := self._asked.get(queue)) is None:  # one asks for all when the second is over
            asked = self._asked[queue] = asyncio.create_task(self._ask_policy(queue))
            asked.add_done_callback(lambda done: self._answered(queue, done))
        return await asyncio.shield(asked)

    def _answered(self, queue: str, asked: asyncio.Task[Policy | None]) -> None:
        del self._asked[queue]
        if not asked.cancelled():
            asked.exception()  # those who asked may all be gone

    async def _ask_policy(self, queue: str) -> Policy | None:
        now = asyncio.get_running_loop().time()
        found = await self._direct("select policy::text from queue where name = %s", (queue,))
        if not found:
            return None
        policy = rows.policy(found[0][0])
        self._policies[queue] = (now, policy)
        return policy

    async def configure(self, queue: str, changes: Mapping[str, object]) -> QueueStats:
        known = await self.policy(queue)
        certain = changes if known is None else {k: v for k, v in changes.items() if k != "shards"}
        amend(known or Policy(), certain)  # refuse before a queue is made
        id = await self._made(queue)
        async with self._transaction() as run:
            if "shards" in changes:  # as for a pause: no grant by the old ones commits after this
                await run("select pg_advisory_xact_lock(1818846562, %s)", (id,))
            ((text,),) = await run("select policy::text from queue where id = %s for update", (id,))
            before = rows.policy(text)
            after = amend(before, changes)
            if after.shards != before.shards:  # the counters change with the items, in one transaction
                ((held,),) = await run(_HELD, (id, id))
                before.shards.check_unused(held)
            await run("update queue set policy = %s::jsonb where id = %s", (rows.policy_text(after), id))
        self._policies[queue] = (asyncio.get_running_loop().time(), after)
        lowest = None
        if after.on_dead_head is not before.on_dead_head:
            ((lowest,),) = await self._direct("select unhalt_1(%s)", (id,))
        if after.settled_retention_ms != before.settled_retention_ms:
            await self._upkeep.partition()
        n = EVERYBODY if after.shards != before.shards else 0 if lowest is None else 1
        self._woken(queue, n, lowest)
        return await self._stats(queue)

    async def pause(self, queue: str, *, paused: bool) -> QueueStats:
        id = await self._id(queue)
        if id is None:
            raise NotFoundError(f"no queue {queue}")
        await self._direct("select pause_1(%s, %s)", (id, paused))
        stats = await self._stats(queue)
        self._woken(queue, 0 if paused else max(1, stats.ready), None)
        return replace(stats, paused=paused)  # as this call left it; another may be quick

    async def _stats(self, queue: str) -> QueueStats:
        (stats,) = await self.queues([queue], None)
        return stats

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        try:
            async with self._pool.connection() as connection, connection.transaction():

                async def run(statement: LiteralString, params: Sequence[object]) -> list[Any]:
                    return await command(connection, statement, params)

                yield run
        except PoolTimeout as error:
            raise UnavailableError("the store cannot answer: no connection") from error
        except psycopg.Error as error:
            raise unavailable(error) from error

    # --- Dead letters ---

    async def _dead(self, queue: str, matching: ItemFilter, limit: int) -> tuple[list[str], bool]:
        wanted = replace(matching, states=frozenset({State.DEAD}))
        found: list[str] = []
        token = ""
        while len(found) <= limit:
            page = await self.list_items(queue, wanted, Scope(), size=limit + 1, token=token)
            found += [item.id for item in page.items]
            token = page.next_token
            if not token:
                break
        return found[:limit], len(found) > limit

    async def redrive(self, queue: str, matching: ItemFilter, *, limit: int, per_second: float) -> Redriven:
        ids, more = await self._dead(queue, matching, limit)
        if not ids:
            return Redriven((), (), more)
        asked = (ids, 1000 / per_second if per_second else 0.0)
        found = await self._direct("select * from redrive_1(%s::uuid[], %s::float8)", asked)
        outcome = verbs.wakes(found, self._woken)
        back = {row[6] for row in outcome if row[1] == 1}
        away = {row[6] for row in outcome if row[1] == 2}
        return Redriven(tuple(id for id in ids if id in back), tuple(id for id in ids if id in away), more)

    async def purge(self, queue: str, matching: ItemFilter, *, limit: int) -> Purged:
        ids, more = await self._dead(queue, matching, limit)
        if not ids:
            return Purged(0, more)
        found = await self._direct("select * from purge_1(%s::uuid[])", (ids,))
        verbs.wakes(found, self._woken)
        return Purged(sum(row[1] for row in found), more)

    # --- Explaining and running ---

    async def ahead(self, id: str) -> tuple[str, State] | None:
        found = await self._direct(
            "select h.id::text, h.state from item i join item h on h.queue_id = i.queue_id"
            " and h.ordering_key = i.ordering_key and h.ordering_key is not null and h.state in (1, 2, 4, 6)"
            " where i.id = %s and i.state = 3 order by h.state = 6, h.ord limit 1",
            (id,),
        )
        return (found[0][0], State(found[0][1])) if found else None

    async def run(self) -> None:
        await self._upkeep.run()

    async def check(self) -> None:
        if (reason := self._upkeep.trouble) is not None:
            raise UnavailableError(reason)
        if not self._upkeep.proven:
            await self._direct("select pg_current_xact_id()::text from beat", ())


def _space(queue: str) -> str:
    return queue.partition("/")[0]


def _key(holder: str, request_id: str) -> int:
    return verbs.digest(f"{holder}\0{request_id}".encode())
