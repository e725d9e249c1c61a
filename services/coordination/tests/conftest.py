"""A store of each kind, a queue of it to play with, and a record of what it woke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast
from uuid import uuid4

import anyio
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from libs.postgres import embedded

from ..store import Store
from ..store.memory import MemoryStore
from ..store.postgres import PostgresStore
from ..work import (
    AckOrder,
    ClaimOrder,
    FailOrder,
    Grant,
    Granted,
    Item,
    Lease,
    LeaseVerdict,
    NewItem,
    QueueStats,
    Scope,
    State,
    Submitted,
)

pytest.register_assert_rewrite("services.coordination.tests.reference")

T = TypeVar("T")

ALL = Scope()
LONGEST_CALL = 15  # seconds; far above every timeout of a store
PRODUCER = "spiffe://test.example/ns/team/producer/intake"


def worker(pod: str, uid: str, namespace: str = "team") -> str:
    """The holder name of one pod."""
    return f"spiffe://test.example/ns/{namespace}/agent/writer/pod/{pod}/{uid}"


ANNA = worker("writer-0", "uid-anna")
BEN = worker("writer-0", "uid-ben")  # a pod of the same name: another holder all the same


def item(**changes: Any) -> NewItem:
    """A valid item with these fields changed."""
    return NewItem(**{"id": str(uuid4()), "payload": b"work", "submitter": PRODUCER, **changes})


async def until(look: Callable[[], Awaitable[T]], within: float = 5) -> T:
    """What `look` answers once that is true; TimeoutError when it is not in time."""
    with anyio.fail_after(within):
        while not (seen := await look()):  # noqa: ASYNC110  # a store is looked at, not listened to
            await anyio.sleep(0.01)
    return seen


@dataclass
class Wakes:
    """What a store has woken, by queue."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, queue: str, n: int) -> None:
        self.calls.append((queue, n))

    async def heard(self, queue: str, *, ready: bool) -> None:
        """Return once waiters on the queue (for work, if `ready`) have been told to look."""

        async def told() -> bool:
            return any(q in ("", queue) and (n > 0 or not ready or not q) for q, n in self.calls)

        await until(told)


@dataclass(frozen=True)
class Queue:
    """A queue of a store, and the verbs in their shortest form: one item, one verdict."""

    store: Store
    name: str

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]

    def sibling(self, name: str) -> Queue:
        """Another queue of the namespace, which need not exist."""
        return Queue(self.store, f"{self.namespace}/{name}")

    async def add(self, *items: NewItem) -> list[str]:
        """Submit items, all of which must be accepted; their ids."""
        verdicts = await self.store.submit(self.name, items or [item()])
        assert {v.status for v in verdicts} == {Submitted.ACCEPTED}
        return [v.id for v in verdicts]

    async def ask(self, most: int = 1, **changes: Any) -> Granted:
        """Claim, as ANNA unless told otherwise, for a minute unless told otherwise; again when told so."""
        while True:
            granted = await self.ask_once(most, **changes)
            if granted.grants or not granted.more:
                return granted

    async def ask_once(self, most: int = 1, **changes: Any) -> Granted:
        asked = {"queue": self.name, "holder": ANNA, "max_items": most, "max_bytes": 1 << 20}
        if "request_id" in changes:  # these are of the holder, and the holders of all tests are the same
            changes["request_id"] = f"{self.namespace}-{changes['request_id']}"
        return await self.store.claim(ClaimOrder(**{**asked, "lease_ms": 60_000, **changes}))

    async def claim(self, most: int = 1, **changes: Any) -> list[Grant]:
        return list((await self.ask(most, **changes)).grants)

    async def take(self, **changes: Any) -> Grant:
        """Claim one item, which must be there at once."""
        (grant,) = await self.claim(**changes)
        return grant

    async def take_in_time(self, **changes: Any) -> Grant:
        """Claim one item as soon as there is one."""
        return (await until(lambda: self.claim(**changes)))[0]

    async def renew(self, of: Grant, lease_ms: int | None = 60_000, holder: str = ANNA) -> LeaseVerdict:
        return (await self.store.renew(holder, [Lease(of.id, of.token)], lease_ms))[0]

    async def ack(self, of: Grant, result: bytes = b"", holder: str = ANNA) -> LeaseVerdict:
        return (await self.store.ack(holder, [AckOrder(of.id, of.token, result)]))[0]

    async def fail(self, of: Grant, error: str = "boom", holder: str = ANNA, **changes: Any) -> LeaseVerdict:
        return (await self.store.fail(holder, [FailOrder(of.id, of.token, error, **changes)]))[0]

    async def release(self, of: Grant, holder: str = ANNA) -> LeaseVerdict:
        return (await self.store.release(holder, [Lease(of.id, of.token)], "not now"))[0]

    async def item(self, id: str) -> Item:
        (found,) = await self.store.items([id], ALL)
        return found

    async def state(self, id: str) -> State:
        return (await self.item(id)).state

    async def states(self, ids: list[str]) -> list[State]:
        return [found.state for found in await self.store.items(ids, ALL)]

    async def becomes(self, id: str, wanted: State) -> Item:
        """The item once it is in that state."""

        async def look() -> Item | None:
            found = await self.item(id)
            return found if found.state is wanted else None

        found = await until(look)
        assert found is not None
        return found

    async def expired(self, **changes: Any) -> Grant:
        """A grant whose lease has ended, of an item that nobody has been given since."""
        grant = await self.take(**{"lease_ms": 100, **changes})

        async def over() -> bool:
            return await self.state(grant.id) is not State.LEASED

        await until(over)
        return grant

    async def dead(self, **changes: Any) -> str:
        """The id of a new item that died of a terminal error. The queue must be empty else."""
        (id,) = await self.add(item(**changes))
        grant = await self.take()
        assert grant.id == id
        assert (await self.fail(grant, retryable=False)).state is State.DEAD
        return id

    async def stats(self) -> QueueStats:
        (found,) = await self.store.queues([self.name], None)
        return found


class Prompt:
    """A store whose calls must answer in time: a call that hangs is an error of its test, not of all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._store, verb)

        async def prompt(*args: Any, **options: Any) -> Any:
            with anyio.fail_after(LONGEST_CALL):
                return await call(*args, **options)

        return prompt


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    """The store with its clockwork going; an error in there is an error of the test."""
    clockwork = asyncio.create_task(store.run())
    try:
        yield cast(Store, Prompt(store))
    finally:
        clockwork.cancel()
        with suppress(asyncio.CancelledError):
            await clockwork


@asynccontextmanager
async def opened(dsn: str, wakes: Wakes) -> AsyncIterator[Store]:
    """One replica on that database, with its clockwork going."""
    async with PostgresStore.open(dsn, wakes) as store, running(store) as prompt:
        yield prompt


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
async def one_loop() -> AsyncIterator[None]:
    """Keeps one event loop for all tests: grpc.aio's poller may still speak to one that was closed."""
    yield  # noqa: PT022  (the loop lasts as long as this)


@pytest.fixture(scope="session")
def wakes() -> Wakes:
    """Hears the stores of all tests: clear it before you listen."""
    return Wakes()


@pytest.fixture
async def memory_store(wakes: Wakes) -> AsyncIterator[Store]:
    async with running(MemoryStore(wakes, epoch=0)) as store:
        yield store


@contextmanager
def data_folder() -> Iterator[Path]:
    """Where a server of a test may keep its data."""
    # Not under pytest's own folder: a server started by root runs as another user, who may not enter that.
    with TemporaryDirectory(prefix="agentctl-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


@pytest.fixture(scope="session")
async def dsn() -> AsyncIterator[str]:
    """One PostgreSQL and one database for all tests: each has a namespace of its own in it."""
    with data_folder() as folder:
        async with embedded(folder) as dsn:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                await connection.execute("ALTER SYSTEM SET fsync = off")  # no test here cuts the power
                await connection.execute("SELECT pg_reload_conf()")
            yield dsn


@pytest.fixture(scope="session")
async def two_stores(wakes: Wakes, dsn: str) -> AsyncIterator[tuple[Store, Store]]:
    """Two replicas on one database; `wakes` hears both. Opened once: that takes longer than most tests."""
    async with opened(dsn, wakes) as a, opened(dsn, wakes) as b:
        yield a, b


@pytest.fixture
async def own(dsn: str) -> AsyncIterator[str]:
    """A database of this test alone, since it is not treated well."""
    name = f"t{uuid4().hex[:12]}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield make_conninfo(dsn, dbname=name)
        await connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def postgres_store(two_stores: tuple[Store, Store]) -> Store:
    return two_stores[0]


@pytest.fixture(
    params=[
        pytest.param("memory_store", id="memory"),
        pytest.param("postgres_store", id="postgres", marks=pytest.mark.postgres),
    ]
)
def store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def namespace() -> str:
    return f"n{uuid4().hex[:12]}"


@pytest.fixture
async def queue(store: Store, namespace: str) -> Queue:
    """An empty queue whose leases may be short."""
    await store.configure(f"{namespace}/work", {"min_lease_ms": 100})
    return Queue(store, f"{namespace}/work")


@pytest.fixture
async def twins(two_stores: tuple[Store, Store], namespace: str) -> tuple[Queue, Queue]:
    """One queue as two replicas see it."""
    await two_stores[0].configure(f"{namespace}/work", {"min_lease_ms": 100})
    return Queue(two_stores[0], f"{namespace}/work"), Queue(two_stores[1], f"{namespace}/work")
