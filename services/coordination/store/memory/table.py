"""The rows and what can happen to one: it is added, granted, let go, settled, buried, forgotten.

A transition leaves counters, chains, groups and the timer wheel right; which transition is due is the
store's business. `touched` collects the queues to wake: name → how many items became ready.
"""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import count

from libs.errors import ExhaustedError

from ...work import (
    MAX_FAILURES,
    OK,
    DeadCause,
    NewItem,
    OnDeadHead,
    OnExpiry,
    State,
    Submitted,
    SubmitVerdict,
)
from .rows import Ended, Group, Queue, Request, Row

TICK_MS = 50  # how often deadlines are looked at, and the width of a slot of the wheel
STALL_MS = 1000  # a longer time between two looks was an outage, and nobody's fault
SETTLED_CAP = 200_000  # settled items kept in all, whatever the retention says: this is memory
SETTLED_BYTES = 256 << 20  # of their payloads and results, likewise
NAMESPACE_QUEUES = 1000

Touched = dict[str, int]


class Table:
    """All rows of a store."""

    def __init__(self, now: int, rng: random.Random) -> None:
        self.queues: dict[str, Queue] = {}
        self.rows: dict[str, Row] = {}
        self.held: dict[str, dict[str, Row]] = {}  # holder → its leased rows
        self.requests: dict[tuple[str, str], Request] = {}
        self._rng = rng
        self._wheel: dict[int, list[Row]] = {}
        self._settled: dict[int, deque[Row]] = {}  # retention → rows, the next to be forgotten first
        self._settled_count = self._settled_bytes = 0
        self.swept_at = now
        self._outage_end = -1
        # Starts above every token of an earlier run: a run grants fewer than 2^22 items a millisecond.
        self._tokens = count((time.time_ns() // 1_000_000) << 22)
        self._order = count(1)

    def queue(self, name: str) -> Queue:
        """The queue of this name, made if it is new."""
        if (known := self.queues.get(name)) is not None:
            return known
        prefix = name.split("/")[0] + "/"
        if sum(other.startswith(prefix) for other in self.queues) >= NAMESPACE_QUEUES:
            raise ExhaustedError(f"namespace {prefix[:-1]} has its most queues ({NAMESPACE_QUEUES})")
        made = self.queues[name] = Queue(name)
        return made

    def add(self, q: Queue, new: NewItem, now: int, touched: Touched) -> SubmitVerdict:
        """Add an item, unless its id, its dedupe key or the cap stands against it."""
        if (known := self.rows.get(new.id)) is not None:
            old = known.new
            same = known.queue is q and old.payload == new.payload and old.dedupe_key == new.dedupe_key
            return SubmitVerdict(Submitted.ACCEPTED if same else Submitted.ID_CONFLICT, new.id)
        key = new.dedupe_key
        if key is not None and (first := q.keeper(key, now)) is not None:
            return SubmitVerdict(Submitted.DUPLICATE, first.new.id, first.state)
        cap = q.policy.max_backlog
        if q.rows >= cap and (depth := q.backlog) >= cap:
            return SubmitVerdict(Submitted.FULL, new.id, depth=depth, cap=cap)
        row = Row(new, q, next(self._order), now)
        self.rows[new.id] = row
        q.items.append(row.seq, row)
        q.rows += 1
        q.submitted_total += 1
        if key is not None:
            q.dedupe[key] = row
        if new.group is not None:
            q.groups.setdefault(new.group, Group()).rows += 1
        q.count(row, 1)
        self.enter(row, now, touched)
        return SubmitVerdict(Submitted.ACCEPTED, new.id)

    def enter(self, row: Row, now: int, touched: Touched) -> None:
        """Put a row that stands nowhere into its queue, behind the head of its ordering key."""
        q, key = row.queue, row.new.ordering_key
        if key is not None:
            chain = q.chains.setdefault(key, deque())
            if not row.chained:
                row.chained = True
                chain.append(row)
            if chain[0] is not row:
                row.state = State.BLOCKED
                q.counts[State.BLOCKED] += 1
                self.arm(row)
                return
        self.offer(row, now, touched)

    def offer(self, row: Row, now: int, touched: Touched) -> None:
        """Make a row that stands nowhere READY, or DELAYED while its time has not come."""
        q = row.queue
        if row.ready_at > now:
            row.state = State.DELAYED
        else:
            row.state = State.READY
            row.ready_since = now
            q.lane(row).append(row)
            touched[q.name] = touched.get(q.name, 0) + 1
        q.counts[row.state] += 1
        if row.ready_at or row.expires_at:
            self.arm(row)

    def withdraw(self, row: Row) -> None:
        """Take an unheld, unsettled row from where it stands."""
        q = row.queue
        q.counts[row.state] -= 1
        if row.state is State.READY:
            q.stale += 1

    def grant(self, row: Row, holder: str, lease_ms: int, request: Request | None, now: int) -> None:
        """Lease a row that was taken from the ready ones."""
        q = row.queue
        q.counts[State.READY] -= 1
        q.counts[State.LEASED] += 1
        q.granted_total += 1
        row.state = State.LEASED
        if row.ended is not None:
            past = row.past = row.past or {}
            past[row.token] = row.ended
            if len(past) > 2 * MAX_FAILURES:
                del past[next(iter(past))]
            row.ended = None
        row.token = next(self._tokens)
        row.attempt += 1
        row.holder = holder
        row.answers = 1
        row.granted_at = now
        row.lease_end = now + lease_ms
        held = self.held.get(holder)
        if held is None:
            held = self.held[holder] = {}
        held[row.new.id] = row
        if request is not None:
            row.request = request
            request.grants.append((row, row.token))
            request.live += 1
        self._arm_for(row, row.lease_end)

    def let_go(self, row: Row, ended: Ended | None) -> None:
        """End the lease of a row, which then stands nowhere. None: by an ack, which the row itself tells."""
        row.ended = ended
        row.queue.counts[State.LEASED] -= 1
        holder = row.holder or ""
        held = self.held[holder]
        del held[row.new.id]
        if not held:
            del self.held[holder]
        if (request := row.request) is not None:
            row.request = None
            request.live -= 1
            if not request.live and self.requests.get(request.key) is request:
                del self.requests[request.key]

    def note(self, row: Row, error: str, holder: str, now: int) -> None:
        """Remember how an attempt failed."""
        failures = row.failures = row.failures or []
        failures.append((row.attempt, error, holder, now))
        del failures[:-MAX_FAILURES]

    def settle(self, row: Row, state: State, now: int, touched: Touched) -> None:
        """Settle a row that stands nowhere; the next of its ordering key takes its place."""
        q, new = row.queue, row.new
        row.state = state
        q.counts[state] += 1
        row.settled_at = now
        row.settled_seq = next(self._order)
        q.results.append(row.settled_seq, row)
        q.settled_total += 1
        q.count(row, -1)
        if new.group is not None:
            q.groups[new.group].results.append(row.settled_seq, row)
        if state is State.DEAD:
            q.dead[new.id] = row
            row.forget_at = now + q.policy.dead_retention_ms
            self._arm_for(row, row.forget_at)
        else:
            if new.dedupe_key is not None:
                row.key_until = now + q.policy.dedupe_window_ms
                if row.key_until == now:
                    self._free_key(row)
                self._arm_for(row, row.key_until)
            self._keep(row, q.policy.settled_retention_ms)
        if new.ordering_key is not None:
            self.promote(q, new.ordering_key, now, touched)
        touched.setdefault(q.name, 0)

    def _keep(self, row: Row, retention_ms: int) -> None:
        """Keep a settled row for those who ask, and drop the oldest beyond the caps. Not in the wheel: that
        would hold what has been dropped until its time comes.
        """
        row.forget_at = row.settled_at + retention_ms
        kept = self._settled.get(retention_ms)
        if kept is None:
            kept = self._settled[retention_ms] = deque()
        kept.append(row)
        self._settled_count += 1
        self._settled_bytes += len(row.new.payload) + len(row.result)
        while self._settled_count > SETTLED_CAP or self._settled_bytes > SETTLED_BYTES:
            self._drop(kept if len(self._settled) == 1 else self._longest_kept())

    def _longest_kept(self) -> deque[Row]:
        return min(filter(None, self._settled.values()), key=lambda kept: kept[0].settled_at)

    def _drop(self, kept: deque[Row]) -> None:
        row = kept.popleft()
        self._settled_count -= 1
        self._settled_bytes -= len(row.new.payload) + len(row.result)
        self.forget(row)

    def die(self, row: Row, cause: DeadCause, now: int, touched: Touched) -> None:
        row.dead_cause = cause
        self.settle(row, State.DEAD, now, touched)

    def undie(self, row: Row) -> None:
        """Take a dead row out of the dead letters; it then stands nowhere."""
        q = row.queue
        q.counts[State.DEAD] -= 1
        q.settled_total -= 1
        q.count(row, 1)
        del q.dead[row.new.id]
        row.dead_cause = None
        row.settled_at = row.settled_seq = row.forget_at = 0

    def promote(self, q: Queue, key: str, now: int, touched: Touched) -> None:
        """Drop what is done from the head of a chain and offer the next."""
        chain = q.chains.get(key)
        while chain:
            head = chain[0]
            halted = head.state is State.DEAD and q.policy.on_dead_head is OnDeadHead.HALT
            if halted or not head.state.settled:
                break
            chain.popleft().chained = False
        if not chain:
            q.chains.pop(key, None)
        elif chain[0].state is State.BLOCKED:
            q.counts[State.BLOCKED] -= 1
            self.offer(chain[0], now, touched)

    def bury(self, row: Row, now: int, touched: Touched) -> None:
        """Delete a dead row; its keys are free."""
        q, key = row.queue, row.new.ordering_key
        self.forget(row)
        if key is not None and key in q.chains:
            q.chains[key] = deque(other for other in q.chains[key] if other is not row)
            self.promote(q, key, now, touched)
        touched.setdefault(q.name, 0)

    def forget(self, row: Row) -> None:
        """Drop a settled row; a dedupe key that is still in its window stays held."""
        q, new = row.queue, row.new
        row.forget_at = 0
        if self.rows.pop(new.id, None) is None:
            return
        if row.state is State.DEAD:
            q.counts[State.DEAD] -= 1
            del q.dead[new.id]
            self._free_key(row)
        q.rows -= 1
        if new.group is not None:
            group = q.groups[new.group]
            group.rows -= 1
            if not group.rows:
                del q.groups[new.group]
        most = 2 * q.rows + 1000
        if len(q.items.rows) > most:
            q.items.keep(lambda kept: kept.new.id in self.rows)
        if len(q.results.rows) > most:
            q.results.keep(lambda kept: kept.new.id in self.rows)

    def _free_key(self, row: Row) -> None:
        key = row.new.dedupe_key
        if key is not None and row.queue.dedupe.get(key) is row:
            del row.queue.dedupe[key]
        row.key_until = 0

    # --- Time ---

    def arm(self, row: Row) -> None:
        """See to it that the wheel looks at the row when its next time comes."""
        self._arm_for(row, row.next_time())

    def _arm_for(self, row: Row, due: int) -> None:
        if due and (not row.armed or due < row.armed):
            row.armed = due
            # the slot whose turn comes after the moment, and is still to come
            slot = max(due, self.swept_at) // TICK_MS + 1
            if (rows := self._wheel.get(slot)) is None:
                self._wheel[slot] = [row]
            else:
                rows.append(row)

    def sweep(self, now: int, touched: Touched) -> None:
        """Let everything happen whose time has come."""
        before, self.swept_at = self.swept_at, now
        if now - before > STALL_MS:
            self._forgive(before, now)
        first, last = before // TICK_MS, now // TICK_MS
        if last - first > len(self._wheel):
            slots = sorted(slot for slot in self._wheel if slot <= last)
        else:
            slots = list(range(first, last + 1))
        for retention_ms, kept in list(self._settled.items()):
            while kept and kept[0].forget_at <= now:
                self._drop(kept)
            if not kept:
                del self._settled[retention_ms]
        for slot in slots:
            for row in self._wheel.pop(slot, ()):
                row.armed = 0
                self._happen(row, now, touched)
                self.arm(row)

    def _forgive(self, before: int, now: int) -> None:
        """Nobody could renew while we stood still: give every live lease that time."""
        self._outage_end = now
        for held in self.held.values():
            for row in held.values():
                if row.lease_end > before:
                    row.lease_end += now - before

    def _happen(self, row: Row, now: int, touched: Touched) -> None:
        state = row.state
        if state is State.LEASED:
            if row.lease_end <= now:
                self._expire(row, now, touched)
        elif state.settled:
            if row.key_until and row.key_until <= now:
                self._free_key(row)
            if state is State.DEAD and row.forget_at and row.forget_at <= now:
                self.bury(row, now, touched)
        elif row.lapsed(now):
            self.withdraw(row)
            self.die(row, DeadCause.EXPIRED, now, touched)
            row.queue.tidy()
        elif state is State.DELAYED and row.ready_at <= now:
            self.withdraw(row)
            self.offer(row, now, touched)

    def _expire(self, row: Row, now: int, touched: Touched) -> None:
        """A lease ran out."""
        q, holder = row.queue, row.holder or ""
        self.let_go(row, Ended(holder, row.ran_out(), "", None, OK))
        self.note(row, "lease expired", holder, now)
        if row.granted_at < self._outage_end:
            row.attempt -= 1
        if row.cancel_reason is not None:
            self.settle(row, State.CANCELED, now, touched)
        elif row.lapsed(now):
            self.die(row, DeadCause.EXPIRED, now, touched)
        elif q.policy.on_expiry is OnExpiry.DEAD:
            self.die(row, DeadCause.LEASE_EXPIRED, now, touched)
        elif row.attempt >= row.new.max_attempts:
            self.die(row, DeadCause.ATTEMPTS, now, touched)
        else:
            row.ready_at = 0
            self.offer(row, now, touched)

    def backoff_ms(self, row: Row) -> int:
        """How long the next attempt waits."""
        return row.new.backoff.delay_ms(row.attempt, self._rng)
