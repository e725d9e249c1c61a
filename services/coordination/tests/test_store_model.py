"""Generated scripts of calls, run against a store and judged by `reference`.

A step is a call, several at once (some order of them must explain the answers), an earlier call verbatim, a
call whose caller goes away and comes back with the same, or time that passes. Where several orders explain
what was seen, all of them are kept as worlds; the store is wrong when no world is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import cycle, permutations
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.errors import InvalidError

from ..store import Store
from ..store.memory import MemoryStore
from ..work import (
    AckOrder,
    Backoff,
    ClaimOrder,
    FailOrder,
    Granted,
    ItemFilter,
    Lease,
    NewItem,
    OnDeadHead,
    Shard,
    Sharding,
    State,
)
from .conftest import ALL, ANNA, BEN, PRODUCER, Wakes
from .reference import NO_JITTER, Reference, seen

HOLDERS = (ANNA, BEN)
QUEUES = ("halt", "skip")
RULES: dict[str, dict[str, Any]] = {
    "halt": {"on_dead_head": OnDeadHead.HALT, "max_backlog": 6},
    "skip": {"on_dead_head": OnDeadHead.SKIP, "dedupe_window_ms": 2000},
}
SECOND = 1000
REPEATABLE = ("submit", "renew", "ack", "fail", "release", "cancel", "pause")
"""What gets its first verdict again although nobody saw that. A claim would need its place in the queue,
redrive and purge find nothing left to do, and each take_back stands for an answer of its own."""


@dataclass(frozen=True)
class Call:
    """One call of a store, to be made again verbatim."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    async def of(self, store: Store) -> Any:
        try:
            return await getattr(store, self.verb)(*self.args, **self.options)
        except InvalidError as error:
            return error

    def judged(self, reference: Reference, answer: Any) -> None:
        getattr(reference, self.verb)(*self.args, answer, **self.options)


@dataclass
class Run:
    """The replicas of a store, the worlds it may be in, and what a script can refer to."""

    stores: Sequence[Store]
    namespace: str
    items: list[NewItem]
    lease_ms: int
    worlds: list[Reference]
    calls: list[Call] = field(default_factory=list)
    leases: list[tuple[str, Lease]] = field(default_factory=list)

    def call(self, verb: str, pick: int, many: list[int], flag: bool) -> Call:
        """The call that a template stands for, here and now."""
        queue = f"{self.namespace}/{QUEUES[pick % 2]}"
        holder, lease = self._lease(pick)
        leases = [self._lease(n)[1] for n in many] or [lease]
        match verb:
            case "submit":
                drawn = [(self._item(pick, n), n % 13 == 12) for n in many or [pick]]
                news = [replace(new, payload=b"other") if other else new for new, other in drawn]
                return Call(verb, (queue, news))
            case "claim":
                request = self.namespace if flag else None
                key = "a" if pick % 11 == 10 else None
                shards = self.worlds[0].policies[queue].shards
                shard = Shard(pick // 4 % shards.count, shards.count, shards.epoch) if shards.count else None
                args = int(pick % 9 == 8) + (2 * shard.index if shard else 0)
                order = ClaimOrder(queue, HOLDERS[pick // 2 % 2], 1 + len(many), 1 << 20, self.lease_ms,
                                   request, args, None if shard else key, shard)  # fmt: skip
                return Call(verb, (order,))
            case "renew":
                return Call(verb, (holder, leases, self.lease_ms))
            case "ack":
                return Call(
                    verb, (holder, [AckOrder(x.id, x.token, b"%d" % (flag and pick % 2)) for x in leases])
                )
            case "fail":
                after = 5 * self.lease_ms if pick % 3 == 2 else None
                return Call(verb, (holder, [FailOrder(x.id, x.token, "boom", flag, after) for x in leases]))
            case "release":
                return Call(verb, (holder, leases, "later"))
            case "take_back":
                return Call(verb, (holder, leases))
            case "release_worker":
                return Call(verb, ("team", ("uid-anna", "uid-ben")[pick % 2], "gone"))
            case "cancel":
                ids = [self._item(pick, n).id for n in many or [pick]]
                return Call(verb, (ids, "no", ALL))
            case "pause":
                return Call(verb, (queue,), {"paused": flag})
            case "redrive":  # under SKIP the place of a redriven item is the store's choice
                return Call(verb, (f"{self.namespace}/halt", ItemFilter()), {"limit": 1000, "per_second": 0})
            case _:
                return Call(verb, (queue, ItemFilter()), {"limit": 1000})

    def _item(self, pick: int, n: int) -> NewItem:
        """An item that is at home in the queue of `pick`; now and then another."""
        return self.items[(2 * n + (pick + (n % 17 == 16)) % 2) % len(self.items)]

    def _lease(self, pick: int) -> tuple[str, Lease]:
        """A lease of the last few, now and then with the wrong holder or an id that nobody knows."""
        if not self.leases or pick % 13 == 12:
            return ANNA, Lease(str(UUID(int=pick)), 1)
        holder, lease = self.leases[-1 - pick % min(len(self.leases), 6)]
        return (BEN if holder == ANNA and pick % 9 == 8 else holder), lease

    async def make(self, *calls: Call) -> None:
        """Make these calls at once, each by another replica."""
        spread = zip(calls, cycle(self.stores), strict=False)
        self.judge(calls, await asyncio.gather(*(call.of(store) for call, store in spread)))

    async def crash(self, call: Call, patience: int) -> None:
        """The caller goes away in the middle, comes back and repeats itself."""
        first = asyncio.create_task(call.of(self.stores[-1]))
        for _ in range(patience):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        if first.cancelled():
            await self.make(call)
        else:
            self.judge([call], [first.result()])

    def judge(self, calls: Sequence[Call], answers: Sequence[Any]) -> None:
        """Keep the worlds in which some order of the calls explains the answers."""
        left: list[Reference] = []
        for world in self.worlds:
            for order in permutations(zip(calls, answers, strict=True)):
                judge = deepcopy(world)
                judge.alone = len(calls) == 1
                try:
                    for call, answer in order:
                        call.judged(judge, answer)
                except AssertionError as error:
                    objection = error
                    continue
                if judge not in left:
                    left.append(judge)
        if not left:
            raise AssertionError(f"no order explains {calls} answered {answers}") from objection
        self.worlds = left
        self.calls += calls
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Granted):
                self.leases += [(call.args[0].holder, Lease(g.id, g.token)) for g in answer.grants]

    async def looked_at(self) -> None:
        """The state shown is that of a world, by items and by counters. Others are not kept."""
        found = await self.stores[-1].items([new.id for new in self.items], ALL)
        shown = {i.id: seen(i) for i in found}
        left = [world for world in self.worlds if world.shown() == shown]
        assert left, (shown, self.worlds[0].shown())
        self.worlds = left
        for stats in await self.stores[0].queues(None, self.namespace):
            counted = (stats.ready, stats.delayed, stats.blocked, stats.leased, stats.dead)
            counts = self.worlds[0].counts(stats.name)
            states = (State.READY, State.DELAYED, State.BLOCKED, State.LEASED, State.DEAD)
            assert counted == tuple(counts[s] for s in states), stats


verbs = st.sampled_from(
    ["submit"] * 4 + ["claim"] * 5 + ["ack"] * 2 + ["fail"] * 2
    + ["renew", "release", "take_back", "release_worker", "cancel", "cancel", "pause", "redrive", "purge"]
)  # fmt: skip
templates = st.tuples(verbs, st.integers(0, 99), st.lists(st.integers(0, 99), max_size=3), st.booleans())
atomic = templates.filter(lambda template: template[0] != "release_worker")  # it looks until it finds nothing
steps = st.one_of(
    st.just(("nothing", None)),
    st.tuples(st.just("call"), templates),
    st.tuples(st.just("call"), templates),
    st.tuples(st.just("at once"), st.lists(atomic, min_size=2, max_size=3)),
    st.tuples(st.just("again"), st.integers(0, 99)),
    st.tuples(st.just("crash"), st.tuples(templates, st.integers(0, 9))),
    st.tuples(st.just("time"), st.sampled_from([700, 1700, 4700])),
)
shapes = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.sampled_from([0, 0, 0, 5]),
            "dedupe_key": st.sampled_from([None, "a"]),
            "ordering_key": st.sampled_from([None, "x"]),
            "delay_ms": st.sampled_from([0, 0, 0, 1]),
            "max_attempts": st.sampled_from([1, 2, 5]),
        }
    ),
    min_size=10,
    max_size=10,
)
counts = st.sampled_from([0, 0, 2])
scripts = st.lists(steps, min_size=20, max_size=60)


def items_of(shapes: list[dict[str, Any]], unit_ms: int) -> list[NewItem]:
    backoff = Backoff(initial_ms=unit_ms, maximum_ms=4 * unit_ms)
    scaled = [{**shape, "delay_ms": shape["delay_ms"] * 2 * unit_ms} for shape in shapes]
    return [NewItem(str(uuid4()), b"work", PRODUCER, backoff=backoff, **shape) for shape in scaled]


async def prepared(stores: Sequence[Store], shapes: list[dict[str, Any]], unit_ms: int, shards: int) -> Run:
    namespace = f"m{uuid4().hex[:12]}"
    policies = {}
    for queue in QUEUES:
        stats = await stores[0].configure(
            f"{namespace}/{queue}", {**RULES[queue], "shards": Sharding(shards)}
        )
        policies[stats.name] = stats.policy
    items = items_of(shapes, unit_ms)
    return Run(stores, namespace, items, 3 * unit_ms, [Reference(policies)])


async def played(run: Run, script: list[tuple[str, Any]], clock: Clock | None) -> None:
    for kind, what in script:
        match kind:
            case "again" if run.calls:
                await run.make(run.calls[-1 - what % min(len(run.calls), 9)])
            case "call":
                await run.make(run.call(*what))
            case (
                "at once"
            ):  # of lists only each entry is atomic: one entry each, or there is no order of calls
                ones = [
                    (verb, pick, many if verb == "claim" else [], flag) for verb, pick, many, flag in what
                ]
                await run.make(*(run.call(*one) for one in ones))
            case "crash" if what[0][0] in REPEATABLE:
                await run.crash(run.call(*what[0]), what[1])
            case "time" if clock:
                clock.advance(what)
                for world in run.worlds:
                    world.advance(what)
        await run.looked_at()


class Clock:
    """Time of a memory store, told by the test; it is swept as often as if it ran."""

    def __init__(self) -> None:
        self.now = 0
        self.sweep = lambda: None

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.now += 50
            self.sweep()


@settings(deadline=None, max_examples=80, report_multiple_bugs=False)
@given(shapes=shapes, script=scripts, shards=counts)
async def test_memory_store_behaves_like_the_reference(shapes, script, shards):
    clock = Clock()
    store = MemoryStore(Wakes(), clock=clock, rng=NO_JITTER)
    clock.sweep = store.sweep
    await played(await prepared([store], shapes, SECOND, shards), script, clock)


@pytest.mark.postgres
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=shapes, script=scripts, shards=counts)
async def test_two_replicas_behave_like_the_reference(two_stores, shapes, script, shards):
    await played(await prepared(two_stores, shapes, 60 * SECOND, shards), script, None)


@pytest.mark.postgres
@pytest.mark.soak
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=shapes, script=scripts, shards=counts)
async def test_two_replicas_behave_like_the_reference_for_long(two_stores, shapes, script, shards):
    await played(await prepared(two_stores, shapes, 60 * SECOND, shards), script, None)
