"""Group commit, clocked by itself: what arrives while a statement is in flight goes into the next one.

A lane has one connection and works on one statement at a time; there is no timer, so a lone call leaves
at once and a busy lane makes large batches. The lane's task owns a flush: a caller that is cancelled
withdraws what is in none yet, and harms nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, Generic, LiteralString, TypeVar

import psycopg

from libs.errors import InternalError, MeshError, UnavailableError

from .session import Fault, Link, fault, unavailable

log = logging.getLogger(__name__)

E = TypeVar("E")
V = TypeVar("V")

MOST_ROWS = 1000
MOST_BYTES = 4 << 20
_RERUNS = 6


def _nothing(entries: Sequence[Any], verdicts: Sequence[Any]) -> None:
    return None


def _free(entry: Any) -> tuple[Hashable, ...]:
    return ()


def _one(entry: Any) -> int:
    return 1


def _small(entry: Any) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class Verb(Generic[E, V]):
    """A statement on many entries: how they become its parameters and its rows verdicts."""

    statement: LiteralString
    keys: Callable[[E], tuple[Hashable, ...]]  # two entries that share one never stand in one statement
    encode: Callable[[list[E]], Sequence[object]]
    decode: Callable[[list[E], list[Any]], list[V]]
    undo: Callable[[Sequence[E], Sequence[V]], None] = _nothing  # nobody took these verdicts
    rows: Callable[[E], int] = _one
    size: Callable[[E], int] = _small
    lines: Callable[[E], tuple[Hashable, ...]] = _free  # entries that share one never overtake each other


@dataclass(eq=False, slots=True)
class Call(Generic[E, V]):
    """Entries of one caller, and those of them that are not in a flush yet."""

    verb: Verb[E, V]
    namespace: str
    entries: Sequence[E]
    todo: Sequence[int]
    verdicts: list[V | None]
    missing: int
    future: asyncio.Future[list[V]]


@dataclass(eq=False, slots=True)
class Batch:
    """What goes into one statement: entries, and whose they are."""

    entries: list[Any] = field(default_factory=list)
    parts: list[tuple[Call[Any, Any], list[int]]] = field(default_factory=list)


class Lane:
    """Statements of a group of verbs, one after the other."""

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self._link = link
        self._waiting: dict[Verb[Any, Any], deque[Call[Any, Any]]] = {}
        self._arrived = asyncio.Event()
        self._closing = False
        self._batch = Batch()
        self._task = asyncio.create_task(self._work(), name=f"lane {name}")

    async def call(self, verb: Verb[E, V], namespace: str, entries: Sequence[E]) -> list[V]:
        """The verdicts on these entries, when their flushes have committed."""
        call = self.put(verb, namespace, entries)
        try:
            return await call.future
        except asyncio.CancelledError:
            call.todo = []
            if call.future.done() and not call.future.cancelled() and call.future.exception() is None:
                verb.undo(entries, call.future.result())
            raise

    def put(self, verb: Verb[E, V], namespace: str, entries: Sequence[E]) -> Call[E, V]:
        """As `call`, for those who will not wait."""
        if self._closing or self._task.done():
            raise UnavailableError("the store is closed")
        future: asyncio.Future[list[V]] = asyncio.get_running_loop().create_future()
        count = len(entries)
        made: Call[E, V] = Call(verb, namespace, entries, range(count), [None] * count, count, future)
        if not count:
            future.set_result([])
            return made
        self._waiting.setdefault(verb, deque()).append(made)
        self._arrived.set()
        return made

    async def close(self) -> None:
        """Let what is in flight finish, refuse the rest."""
        self._closing = True
        self._arrived.set()
        await self._task
        await self._link.drop()

    async def _work(self) -> None:
        try:
            while not self._closing:
                await self._arrived.wait()
                self._arrived.clear()
                while not self._closing and self._waiting:
                    await self._turn()
        finally:  # whatever ends the lane, nobody waits for it
            waiting = chain.from_iterable(self._waiting.values())
            for call in [*waiting, *(call for call, _ in self._batch.parts)]:
                _refuse(call, UnavailableError("the store is closed"))

    async def _turn(self) -> None:
        verb, calls = next(iter(self._waiting.items()))
        batch = self._batch = _fill(verb, calls)
        # Verbs take turns: this one goes to the end, if something is left of it.
        del self._waiting[verb]
        while calls and not calls[0].todo:
            calls.popleft()
        if calls:
            self._waiting[verb] = calls
        if batch.entries:
            await self._flush(verb, batch)

    async def _flush(self, verb: Verb[Any, Any], batch: Batch) -> None:
        try:
            verdicts = await self._execute(verb, batch.entries)
        except psycopg.Error as error:
            if fault(error) is Fault.ENTRY and len(batch.parts) > 1:
                for part in batch.parts:
                    call, indexes = part
                    await self._flush(verb, Batch([call.entries[n] for n in indexes], [part]))
                return
            log.error("%s was refused: %s", self.name, error)
            self._refuse(batch, InternalError("the store refused this"))
        except MeshError as error:
            self._refuse(batch, error)
        else:
            done = 0
            for call, indexes in batch.parts:
                _deliver(call, indexes, verdicts[done : done + len(indexes)])
                done += len(indexes)

    def _refuse(self, batch: Batch, error: MeshError) -> None:
        for call, _ in batch.parts:
            _refuse(call, error)

    async def _execute(self, verb: Verb[Any, Any], entries: list[Any]) -> list[Any]:
        for attempt in range(_RERUNS):
            try:
                return verb.decode(entries, await self._link.run(verb.statement, verb.encode(entries)))
            except psycopg.Error as error:
                kind = fault(error)
                if kind is Fault.LOST:
                    raise unavailable(error) from error
                if kind is not Fault.AGAIN:
                    raise
                await asyncio.sleep(random.random() * 0.002 * 2**attempt)
        raise UnavailableError("the store is too busy: too many changes collided")


def _fill(verb: Verb[Any, Any], calls: deque[Call[Any, Any]]) -> Batch:
    """Take what fits into one statement; over the cap each namespace gets its turn."""
    batch = Batch()
    seen: set[Hashable] = set()
    behind: set[Hashable] = set()  # lines of which somebody was left behind
    rows = size = 0
    keys_of, lines_of, rows_of, size_of = verb.keys, verb.lines, verb.rows, verb.size
    for call, share in _in_turn(calls):
        if call.future.done():
            call.todo = []
            continue
        taken: list[int] = []
        left: list[int] = []
        for n in call.todo:
            entry = call.entries[n]
            keys, lines = keys_of(entry), lines_of(entry)
            more, bytes_ = rows_of(entry), size_of(entry)
            fits = not batch.entries or (rows + more <= MOST_ROWS and size + bytes_ <= MOST_BYTES)
            apart = seen.isdisjoint(keys) and behind.isdisjoint(lines)
            if not fits or len(taken) >= share or not apart:
                left.append(n)
                # A later entry with these keys must not overtake this one.
                seen.update(keys)
                behind.update(lines)
                continue
            seen.update(keys)
            taken.append(n)
            batch.entries.append(entry)
            rows += more
            size += bytes_
        call.todo = left
        if taken:
            batch.parts.append((call, taken))
        if rows >= MOST_ROWS or size >= MOST_BYTES:
            break
    return batch


def _in_turn(calls: deque[Call[Any, Any]]) -> Iterator[tuple[Call[Any, Any], int]]:
    if len({call.namespace for call in calls}) == 1:
        return ((call, MOST_ROWS) for call in calls)
    spaces: dict[str, list[Call[Any, Any]]] = {}
    for call in calls:
        spaces.setdefault(call.namespace, []).append(call)
    share = (
        MOST_ROWS if sum(len(call.todo) for call in calls) <= MOST_ROWS else max(1, MOST_ROWS // len(spaces))
    )
    turns = chain.from_iterable(zip_longest(*spaces.values()))
    return ((call, share) for call in turns if call is not None)


def _deliver(call: Call[Any, Any], indexes: list[int], verdicts: list[Any]) -> None:
    if call.future.done():  # the caller has gone, or an earlier part of the call failed
        call.verb.undo([call.entries[n] for n in indexes], verdicts)
        return
    for n, verdict in zip(indexes, verdicts, strict=True):
        call.verdicts[n] = verdict
    call.missing -= len(indexes)
    if not call.missing:
        call.future.set_result(call.verdicts)


def _refuse(call: Call[Any, Any], error: MeshError) -> None:
    call.todo = []
    if not call.future.done():
        call.future.set_exception(error)
        call.future.exception()  # those who do not wait need not look
