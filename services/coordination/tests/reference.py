"""What a store does, written to be obviously right: one dict of items and no index.

It judges rather than predicts. Each verb takes the arguments of the store's and the answer that the store
gave, says by AssertionError that it was not allowed, and follows it otherwise. What a store may choose
(tokens, the jitter of a backoff, the order of items that became ready again) is taken from the answer.
Not in here: lifetimes, retention, max_hold, the cut by bytes, pages and cursors. `test_store` has those.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from libs.errors import InvalidError

from ..work import (
    MAX_FAILURES,
    MAX_REFUNDS,
    UNKNOWN,
    AckOrder,
    Canceled,
    CancelVerdict,
    ClaimOrder,
    DeadCause,
    FailOrder,
    Granted,
    Held,
    Item,
    ItemFilter,
    Lease,
    LeaseVerdict,
    Lost,
    NewItem,
    OnDeadHead,
    Policy,
    Purged,
    QueueStats,
    Redriven,
    Scope,
    State,
    Submitted,
    SubmitVerdict,
    item_hash,
)

BACK = ("release", LeaseVerdict(Held.OK))  # what may be said to the holder of a grant that was taken back
NO_JITTER, ALL_JITTER = random.Random(), random.Random()
NO_JITTER.random = lambda: 0.0  # type: ignore[method-assign]
ALL_JITTER.random = lambda: 1.0  # type: ignore[method-assign]


@dataclass
class Thing:
    """An item. While nobody holds it `state` is READY; `Reference.state` sees what it waits for."""

    new: NewItem
    queue: str
    ready_at: int
    place: int | None  # among the ready of its priority, None where a store may choose
    state: State = State.READY
    attempt: int = 0
    failures: int = 0
    refunds: int = 0
    answers: int = 0  # that have told of its lease
    cause: DeadCause | None = None
    result: bytes = b""
    cancel_asked: bool = False
    redriven: bool = False
    settled_at: int = 0
    holder: str = ""  # of the last grant
    token: int = 0
    lease_end: int = 0
    lost: Lost | None = None  # how the last lease ended, if not by settling
    last: tuple[object, ...] = ()  # the call that ended it, and its verdict
    past: dict[int, tuple[object, ...]] = field(default_factory=dict)  # the same for earlier tokens


@dataclass
class Reference:
    """All queues, with the policy of each."""

    policies: dict[str, Policy]
    now: int = 0
    places: int = 0
    paused: set[str] = field(default_factory=set)
    things: dict[str, Thing] = field(default_factory=dict)
    requests: dict[tuple[str, str], tuple[int, tuple[Lease, ...]]] = field(default_factory=dict)
    alone: bool = field(default=True, compare=False)  # whether calls are made one after the other

    # What follows from what is stored

    def state(self, thing: Thing) -> State:
        if thing.state is not State.READY:
            return thing.state
        if self.head(thing) is not thing:
            return State.BLOCKED
        return State.DELAYED if thing.ready_at > self.now else State.READY

    def head(self, thing: Thing) -> Thing:
        """The first unsettled item of its ordering key; under HALT a dead one counts."""
        if thing.new.ordering_key is None:
            return thing
        halts = self.policies[thing.queue].on_dead_head is OnDeadHead.HALT
        return next(
            other
            for other in self.of(thing.queue)
            if other.new.ordering_key == thing.new.ordering_key
            and (not other.state.settled or (halts and other.state is State.DEAD))
        )

    def hash(self, thing: Thing) -> int:
        return item_hash(thing.new.shard_key, thing.new.dedupe_key, thing.new.id)

    def of(self, queue: str) -> Iterable[Thing]:
        return (thing for thing in self.things.values() if thing.queue == queue)

    def keeper(self, queue: str, key: str) -> Thing | None:
        """Who holds a dedupe key."""
        window = self.policies[queue].dedupe_window_ms
        for thing in self.of(queue):
            free = thing.state in (State.SUCCEEDED, State.CANCELED) and self.now >= thing.settled_at + window
            if thing.new.dedupe_key == key and not free:
                return thing
        return None

    def live(self, lease: Lease, holder: str) -> bool:
        thing = self.things.get(lease.id)
        return (
            thing is not None
            and (thing.state, thing.token, thing.holder) == (State.LEASED, lease.token, holder)
            and thing.lease_end > self.now
        )

    # Verbs

    def submit(self, queue: str, items: Sequence[NewItem], answer: list[SubmitVerdict]) -> None:
        assert len(answer) == len(items)
        for new, verdict in zip(items, answer, strict=True):
            assert verdict == self._submit(queue, new), (new, verdict)

    def _submit(self, queue: str, new: NewItem) -> SubmitVerdict:
        if known := self.things.get(new.id):
            identity = (known.queue, known.new.payload, known.new.dedupe_key)
            same = identity == (queue, new.payload, new.dedupe_key)
            return SubmitVerdict(Submitted.ACCEPTED if same else Submitted.ID_CONFLICT, new.id)
        if new.dedupe_key is not None and (first := self.keeper(queue, new.dedupe_key)):
            return SubmitVerdict(Submitted.DUPLICATE, first.new.id, self.state(first))
        depth, cap = sum(not t.state.settled for t in self.of(queue)), self.policies[queue].max_backlog
        if depth >= cap:
            return SubmitVerdict(Submitted.FULL, new.id, depth=depth, cap=cap)
        thing = self.things[new.id] = Thing(new, queue, self.now + new.delay_ms, None)
        if self.state(thing) is State.READY:
            thing.place = self._end()
        return SubmitVerdict(Submitted.ACCEPTED, new.id)

    def _end(self) -> int:
        self.places += 1
        return self.places

    def claim(self, order: ClaimOrder, answer: Granted | InvalidError) -> None:
        key = (order.holder, order.request_id or "")
        args, leases = self.requests.get(key, (0, ()))
        if order.request_id is not None and (live := [le for le in leases if self.live(le, order.holder)]):
            if args != order.request_args:
                assert isinstance(answer, InvalidError)
            else:
                assert isinstance(answer, Granted)
                assert sorted((g.id, g.token) for g in answer.grants) == sorted((x.id, x.token) for x in live)
                for lease in live:
                    self.things[lease.id].answers += 1
            return
        assert isinstance(answer, Granted)
        ready = [t for t in self.of(order.queue) if self.state(t) is State.READY]
        if order.dedupe_key is not None:
            ready = [t for t in ready if t is self.keeper(order.queue, order.dedupe_key)]
        if (shard := order.shard) is not None:
            ready = [t for t in ready if self.hash(t) % shard.count == shard.index]
        if order.queue in self.paused:
            ready = []
        assert all(g.id in self.things for g in answer.grants)
        self._in_order(ready, [self.things[g.id] for g in answer.grants], order.max_items)
        if order.dedupe_key is None:
            more = len(ready) > len(answer.grants)
            # What is left of a flush counts, and another claim of that flush may have taken it.
            assert not answer.grants or answer.more == more or not (answer.more or self.alone)
        for grant in answer.grants:
            thing = self.things[grant.id]
            thing.attempt += 1
            assert (grant.attempt, len(grant.failures)) == (thing.attempt, thing.failures)
            assert (grant.queue, grant.payload) == (thing.queue, thing.new.payload)
            assert grant.token > thing.token
            if thing.token:
                thing.past[thing.token] = (thing.holder, *(thing.last or BACK))
            thing.state, thing.holder, thing.token = State.LEASED, order.holder, grant.token
            thing.lost, thing.last, thing.redriven, thing.answers = None, (), False, 1
            assert 0 < grant.expires_in_ms <= (order.lease_ms or 0)
            thing.lease_end = self.now + grant.expires_in_ms
        if order.request_id is not None and answer.grants:
            self.requests[key] = (order.request_args, tuple(Lease(g.id, g.token) for g in answer.grants))

    def _in_order(self, ready: list[Thing], taken: list[Thing], most: int) -> None:
        """As many as asked for; nothing passed over that is more urgent or stands before."""
        assert len({t.new.id for t in taken}) == len(taken) == min(most, len(ready))
        assert all(t in ready for t in taken)
        left = [t for t in ready if t not in taken]
        for n, thing in enumerate(taken):
            for other in (*taken[n + 1 :], *left):
                assert thing.new.priority >= other.new.priority
                if thing.new.priority == other.new.priority and thing.place and other.place:
                    assert thing.place < other.place

    def renew(self, holder: str, leases: Sequence[Lease], lease_ms: int, answer: list[LeaseVerdict]) -> None:
        for lease, verdict in zip(leases, answer, strict=True):
            if self._stands(holder, lease, verdict, ("renew",)):
                thing = self.things[lease.id]
                assert (verdict.status, verdict.cancel_requested) == (Held.OK, thing.cancel_asked)
                assert verdict.expires_in_ms is not None
                assert 0 < verdict.expires_in_ms <= lease_ms
                thing.lease_end = self.now + verdict.expires_in_ms

    def ack(self, holder: str, acks: Sequence[AckOrder], answer: list[LeaseVerdict]) -> None:
        for ack, verdict in zip(acks, answer, strict=True):
            call = ("ack", ack.result)
            if self._stands(holder, Lease(ack.id, ack.token), verdict, call):
                thing = self.things[ack.id]
                assert verdict == LeaseVerdict(Held.OK)
                thing.result, thing.redriven = ack.result, False
                self._settle(thing, State.SUCCEEDED)
                thing.last = (*call, verdict)

    def fail(self, holder: str, failures: Sequence[FailOrder], answer: list[LeaseVerdict]) -> None:
        for failure, verdict in zip(failures, answer, strict=True):
            call = ("fail", failure.error, failure.retryable, failure.retry_after_ms)
            if self._stands(holder, Lease(failure.id, failure.token), verdict, call):
                self._fail(self.things[failure.id], failure, verdict)
                self.things[failure.id].last = (*call, verdict)

    def _fail(self, thing: Thing, failure: FailOrder, verdict: LeaseVerdict) -> None:
        assert verdict.status is Held.OK
        thing.failures = min(thing.failures + 1, MAX_FAILURES)
        thing.lost = Lost.FAILED
        if thing.cancel_asked:
            self._settle(thing, State.CANCELED)
        elif not failure.retryable or thing.attempt >= thing.new.max_attempts:
            self._settle(thing, State.DEAD)
            thing.cause = DeadCause.ATTEMPTS if failure.retryable else DeadCause.TERMINAL
        else:
            shortest = thing.new.backoff.delay_ms(thing.attempt, ALL_JITTER)
            longest = thing.new.backoff.delay_ms(thing.attempt, NO_JITTER)
            asked = failure.retry_after_ms or 0
            assert verdict.retry_in_ms is not None
            assert max(shortest, asked) <= verdict.retry_in_ms <= max(longest, asked)
            self._wait(thing, verdict.retry_in_ms, None)
        assert verdict.state is (thing.state if thing.state.settled else None)

    def release(self, holder: str, leases: Sequence[Lease], reason: str, answer: list[LeaseVerdict]) -> None:
        for lease, verdict in zip(leases, answer, strict=True):
            if self._stands(holder, lease, verdict, ("release",)):
                thing = self.things[lease.id]
                assert verdict.status is Held.OK
                self._give_back(thing, self._end())
                assert verdict.state is (thing.state if thing.state.settled else None)
                thing.last = ("release", verdict)

    def take_back(self, holder: str, leases: Sequence[Lease], answer: None) -> None:
        for lease in leases:
            if self.live(lease, holder):
                thing = self.things[lease.id]
                thing.answers -= 1
                if thing.answers:
                    continue
                thing.refunds += 1
                self._give_back(thing, None, counted=thing.refunds > MAX_REFUNDS)
                for key, (_, granted) in list(self.requests.items()):
                    if lease in granted:
                        del self.requests[key]

    def release_worker(self, namespace: str, uid: str, reason: str, answer: int) -> None:
        """The pod may hold items that are not known here."""
        where, pod = f"/ns/{namespace}/agent/", f"/{uid}"
        held = [t for t in self.things.values() if where in t.holder and t.holder.endswith(pod)]
        held = [t for t in held if self.live(Lease(t.new.id, t.token), t.holder)]
        assert answer >= len(held)
        for thing in held:
            thing.refunds += 1
            if counted := thing.refunds > MAX_REFUNDS:
                thing.failures = min(thing.failures + 1, MAX_FAILURES)
            self._give_back(thing, None, counted=counted)

    def _give_back(self, thing: Thing, place: int | None, *, counted: bool = False) -> None:
        thing.attempt -= not counted
        thing.lost = Lost.RELEASED
        if thing.cancel_asked:
            self._settle(thing, State.CANCELED)
        elif thing.attempt >= thing.new.max_attempts:
            self._settle(thing, State.DEAD)
            thing.cause = DeadCause.ATTEMPTS
        else:
            self._wait(thing, 0, place)

    def _wait(self, thing: Thing, delay_ms: int, place: int | None) -> None:
        thing.state, thing.ready_at, thing.place = State.READY, self.now + delay_ms, place

    def _settle(self, thing: Thing, state: State) -> None:
        thing.state, thing.settled_at = state, self.now

    def _stands(self, holder: str, lease: Lease, verdict: LeaseVerdict, call: tuple[object, ...]) -> bool:
        """Whether the verb is to be carried out; if not, judge the verdict that says so."""
        thing = self.things.get(lease.id)
        if thing is None:
            assert verdict == UNKNOWN
            return False
        if (lease.token, holder) != (thing.token, thing.holder):
            first = thing.past.get(lease.token, ())
            assert verdict.status is not Held.OK or first == (holder, *call, verdict)
            return False
        if thing.state is State.LEASED:
            return True
        if thing.last and thing.last[:-1] == call:
            if verdict == thing.last[-1]:
                return False
            assert thing.redriven
        if call[0] == "ack" and thing.lost is Lost.EXPIRED and not thing.state.settled:
            return verdict.status is Held.OK or not thing.redriven
        if call[0] == "release" and thing.lost is Lost.RELEASED and verdict.status is Held.OK:
            return False  # it was taken back: no harm in saying that it is
        said = (verdict.status, verdict.state if thing.state.settled else verdict.lost)
        if thing.state.settled:
            assert said == (Held.SETTLED, thing.state)
        elif not thing.redriven:
            assert said == (Held.LOST, thing.lost)
        return False

    def cancel(self, ids: Sequence[str], reason: str, scope: Scope, answer: list[CancelVerdict]) -> None:
        for id, verdict in zip(ids, answer, strict=True):
            assert verdict.status is self._cancel(self.things.get(id))

    def _cancel(self, thing: Thing | None) -> Canceled:
        if thing is None:
            return Canceled.NOT_FOUND
        if thing.state is State.SUCCEEDED:
            return Canceled.SETTLED
        if thing.state is State.LEASED:
            thing.cancel_asked = True
            return Canceled.LEASED
        if thing.state is not State.CANCELED:
            self._settle(thing, State.CANCELED)
            thing.cause = None
        return Canceled.CANCELED

    def pause(self, queue: str, answer: QueueStats, *, paused: bool) -> None:
        assert answer.paused is paused
        (self.paused.add if paused else self.paused.discard)(queue)

    def dead(self, queue: str) -> list[Thing]:
        return [t for t in self.of(queue) if t.state is State.DEAD]

    def redrive(
        self, queue: str, matching: ItemFilter, answer: Redriven, *, limit: int, per_second: float
    ) -> None:
        dead = self.dead(queue)
        assert (sorted(answer.ids), answer.more) == (sorted(t.new.id for t in dead), False)
        for thing in dead:
            thing.attempt, thing.refunds, thing.cause, thing.redriven = 0, 0, None, True
            self._wait(thing, 0, None)

    def purge(self, queue: str, matching: ItemFilter, answer: Purged, *, limit: int) -> None:
        dead = self.dead(queue)
        assert answer == Purged(len(dead), False)
        for thing in dead:
            del self.things[thing.new.id]

    def advance(self, ms: int) -> None:
        """Time passes; leases end in their order."""
        self.now += ms
        ended = [t for t in self.things.values() if t.state is State.LEASED and t.lease_end <= self.now]
        for thing in sorted(ended, key=lambda t: t.lease_end):
            thing.failures = min(thing.failures + 1, MAX_FAILURES)
            thing.lost = Lost.EXPIRED
            if thing.cancel_asked:
                self._settle(thing, State.CANCELED)
            elif thing.attempt >= thing.new.max_attempts:
                self._settle(thing, State.DEAD)
                thing.cause = DeadCause.ATTEMPTS
            else:
                self._wait(thing, 0, None)
            thing.settled_at = thing.lease_end

    # What a look must show

    def shown(self) -> dict[str, tuple[object, ...]]:
        things = self.things.values()
        return {
            t.new.id: _seen(self.state(t), t.attempt, t.holder, t.failures, t.cause, t.result) for t in things
        }

    def counts(self, queue: str) -> Counter[State]:
        return Counter(self.state(t) for t in self.of(queue))


def seen(item: Item) -> tuple[object, ...]:
    """What an item that a store shows has in common with what is known here."""
    holder, failures = item.holder or "", len(item.failures)
    return _seen(item.state, item.attempt, holder, failures, item.dead_cause, item.result)


def _seen(
    state: State, attempt: int, holder: str, failures: int, cause: DeadCause | None, result: bytes
) -> tuple[object, ...]:
    if state is State.CANCELED:  # whether its last lease counted is of no interest any more
        attempt = 0
    return state, attempt, holder if state is State.LEASED else "", failures, cause, result
