"""A store in this process's memory: one event loop is the lock. One replica, nothing survives it.

Ready items stand in one deque per queue and priority, every deadline in one timer wheel that is re-armed
lazily, so an operation costs O(1). Entries of a deque or a log whose row has moved on are skipped when
met and swept out when they are the majority.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from libs.errors import ExhaustedError, InvalidError, NotFoundError

from ...work import (
    MAX_GRANT_BYTES,
    MAX_REFUNDS,
    OK,
    UNKNOWN,
    AckOrder,
    Canceled,
    CancelVerdict,
    ClaimOrder,
    DeadCause,
    FailOrder,
    Grant,
    Granted,
    Held,
    Item,
    ItemFilter,
    Lease,
    LeaseVerdict,
    Lost,
    NewItem,
    Page,
    Policy,
    Purged,
    QueueStats,
    Redriven,
    Results,
    Scope,
    State,
    SubmitVerdict,
    amend,
)
from .. import EVERYBODY, Store, Wake
from .rows import Ended, Lane, Queue, Request, Row
from .table import STALL_MS, TICK_MS, Table, Touched

SCAN = 10_000  # rows that one page looks at
_UNSETTLED = frozenset({State.READY, State.DELAYED, State.BLOCKED, State.LEASED})


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MemoryStore(Store):
    """`clock` gives milliseconds that never go back; `run` must run, or `sweep` be called. Epochs of shards
    begin above `epoch`; by default that is the milliseconds since 1970, which no earlier run has reached.
    """

    def __init__(
        self,
        wake: Wake,
        *,
        clock: Callable[[], int] = _monotonic_ms,
        rng: random.Random | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(wake)
        self._clock = clock
        self._epoch = time.time_ns() // 1_000_000 if epoch is None else epoch
        self._table = Table(clock(), rng or random.Random())

    def _now(self) -> int:
        """The time, after a stand-still has been noticed."""
        now = self._clock()
        if now - self._table.swept_at > STALL_MS:
            self.sweep()
        return now

    def _wake_all(self, touched: Touched) -> None:
        for queue, ready in touched.items():
            self._wake(queue, ready)

    # --- Work ---

    async def submit(self, queue: str, items: Sequence[NewItem]) -> list[SubmitVerdict]:
        now = self._now()
        table = self._table
        q = table.queue(queue)
        touched: Touched = {}
        verdicts = [table.add(q, new, now, touched) for new in items]
        self._wake(queue, touched.get(queue, 0))
        return verdicts

    async def claim(self, order: ClaimOrder) -> Granted:
        table = self._table
        q = table.queues.get(order.queue)
        if q is None:
            return Granted(())
        now = self._now()
        request = None
        if order.request_id is not None:
            key = (order.holder, order.request_id)
            if (first := table.requests.get(key)) and (live := self._replay(first, order, now)):
                return Granted(live)
            request = Request(key, order.request_args)
        q.policy.shards.check(order.queue, order.shard)
        lane = q.ready.get(None if order.shard is None else order.shard.index)
        if q.paused or lane is None:
            return Granted(())
        touched: Touched = {}
        rows = (
            self._pick(q, lane, order, now, touched)
            if order.dedupe_key is None
            else self._pick_key(q, order, now)
        )
        lease_ms = min(q.policy.lease_ms(order.lease_ms), q.policy.max_hold_ms)
        for row in rows:
            table.grant(row, order.holder, lease_ms, request, now)
        if request is not None and rows:
            table.requests[request.key] = request
        if rows:
            self._wake(order.queue, 0)
        self._wake_all(touched)
        more = bool(rows) and q.counts[State.READY] > 0
        if more and order.shard is not None:
            more = any(row.state is State.READY for some in lane for row in some)
        return Granted(tuple(row.grant(now) for row in rows), more)

    def _replay(self, request: Request, order: ClaimOrder, now: int) -> tuple[Grant, ...]:
        live = [row for row, token in request.grants if row.live(order.holder, token, now)]
        if live and request.args != order.request_args:
            raise InvalidError(violations={"request_id": "was used before with other arguments"})
        for row in live:
            row.answers += 1
        return tuple(row.grant(now) for row in live)

    def _pick(self, q: Queue, lane: Lane, order: ClaimOrder, now: int, touched: Touched) -> list[Row]:
        rows: list[Row] = []
        size = 0
        for ready in reversed(lane):
            while ready and len(rows) < order.max_items:
                row = ready[0]
                if row.state is not State.READY:
                    ready.popleft()
                    q.stale -= 1
                elif row.lapsed(now):
                    ready.popleft()
                    q.counts[State.READY] -= 1
                    self._table.die(row, DeadCause.EXPIRED, now, touched)
                else:
                    size += len(row.new.payload) + row.carried()
                    if rows and size > order.max_bytes:
                        return rows
                    ready.popleft()
                    rows.append(row)
        return rows

    def _pick_key(self, q: Queue, order: ClaimOrder, now: int) -> list[Row]:
        row = q.dedupe.get(order.dedupe_key or "")
        if row is None or row.state is not State.READY or row.lapsed(now):
            return []
        q.lane(row).remove(row)  # O(n), for the one who asks for a single known key
        return [row]

    async def renew(self, holder: str, leases: Sequence[Lease], lease_ms: int | None) -> list[LeaseVerdict]:
        now = self._now()
        return [self._renew(holder, lease, lease_ms, now) for lease in leases]

    def _renew(self, holder: str, lease: Lease, lease_ms: int | None, now: int) -> LeaseVerdict:
        row = self._table.rows.get(lease.id)
        if row is None or not row.live(holder, lease.token, now):
            return self._lost(row, holder, lease.token)
        policy = row.queue.policy
        asked = min(max(policy.lease_ms(lease_ms), policy.min_lease_ms), policy.max_lease_ms)
        last = row.granted_at + policy.max_hold_ms
        if last <= now:
            return LeaseVerdict(Held.LOST, Lost.MAX_HOLD)
        row.lease_end = min(now + asked, last)
        self._table.arm(row)
        canceled = row.cancel_reason is not None
        return LeaseVerdict(Held.OK, expires_in_ms=row.lease_end - now, cancel_requested=canceled)

    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        now = self._now()
        touched: Touched = {}
        verdicts = [self._ack(holder, ack, now, touched) for ack in acks]
        self._wake_all(touched)
        return verdicts

    def _ack(self, holder: str, ack: AckOrder, now: int, touched: Touched) -> LeaseVerdict:
        row = self._table.rows.get(ack.id)
        if row is None or row.token != ack.token or row.holder != holder:
            return self._lost(row, holder, ack.token)
        if row.settled_seq:
            same = row.result == ack.result and row.result_type == ack.content_type
            return OK if row.state is State.SUCCEEDED and same else self._lost(row, holder, ack.token)
        if row.state is State.LEASED:
            self._table.let_go(row, None)
        elif row.ended is not None and row.ended.lost in (Lost.EXPIRED, Lost.MAX_HOLD):
            self._table.withdraw(row)
            row.queue.tidy()
            row.ended = None
        else:
            return self._lost(row, holder, ack.token)
        row.result = ack.result
        row.result_type = ack.content_type
        self._table.settle(row, State.SUCCEEDED, now, touched)
        return OK

    async def fail(self, holder: str, failures: Sequence[FailOrder]) -> list[LeaseVerdict]:
        now = self._now()
        touched: Touched = {}
        verdicts = [self._fail(holder, failure, now, touched) for failure in failures]
        self._wake_all(touched)
        return verdicts

    def _fail(self, holder: str, fail: FailOrder, now: int, touched: Touched) -> LeaseVerdict:
        table = self._table
        row = table.rows.get(fail.id)
        if row is None or not row.live(holder, fail.token, now):
            return self._first(row, holder, fail.token, "fail", fail)
        table.note(row, fail.error, holder, now)
        retry = fail.retryable and row.attempt < row.new.max_attempts
        if row.cancel_reason is not None:
            verdict = LeaseVerdict(Held.OK, state=State.CANCELED)
        elif retry:
            verdict = LeaseVerdict(Held.OK, retry_in_ms=max(table.backoff_ms(row), fail.retry_after_ms or 0))
        else:
            verdict = LeaseVerdict(Held.OK, state=State.DEAD)
        table.let_go(row, Ended(holder, Lost.FAILED, "fail", fail, verdict))
        if verdict.retry_in_ms is not None:
            row.ready_at = now + verdict.retry_in_ms
            table.offer(row, now, touched)
        elif verdict.state is State.DEAD:
            table.die(row, DeadCause.ATTEMPTS if fail.retryable else DeadCause.TERMINAL, now, touched)
        else:
            table.settle(row, State.CANCELED, now, touched)
        return verdict

    async def release(self, holder: str, leases: Sequence[Lease], reason: str) -> list[LeaseVerdict]:
        now = self._now()
        touched: Touched = {}
        verdicts = []
        for lease in leases:
            row = self._table.rows.get(lease.id)
            if row is None or not row.live(holder, lease.token, now):
                verdicts.append(self._first(row, holder, lease.token, "release", None))
            else:
                verdicts.append(self._release(row, holder, now, touched))
        self._wake_all(touched)
        return verdicts

    def _release(
        self, row: Row, holder: str, now: int, touched: Touched, *, counted: bool = False
    ) -> LeaseVerdict:
        canceled = row.cancel_reason is not None
        verdict = LeaseVerdict(Held.OK, state=State.CANCELED) if canceled else OK
        self._table.let_go(row, Ended(holder, Lost.RELEASED, "release", None, verdict))
        if canceled:
            self._table.settle(row, State.CANCELED, now, touched)
            return verdict
        row.attempt -= not counted
        if row.attempt >= row.new.max_attempts:
            self._table.die(row, DeadCause.ATTEMPTS, now, touched)
        else:
            row.ready_at = 0
            self._table.offer(row, now, touched)
        return verdict

    async def take_back(self, holder: str, leases: Sequence[Lease]) -> None:
        now = self._now()
        touched: Touched = {}
        for lease in leases:
            row = self._table.rows.get(lease.id)
            if row is None or not row.live(holder, lease.token, now):
                continue
            if row.answers > 1:
                row.answers -= 1
                continue
            if row.request is not None:
                self._table.requests.pop(row.request.key, None)
            row.refunds += 1
            self._release(row, holder, now, touched, counted=row.refunds > MAX_REFUNDS)
        self._wake_all(touched)

    async def release_worker(self, namespace: str, uid: str, reason: str) -> int:
        now = self._now()
        touched: Touched = {}
        start, end = f"/ns/{namespace}/agent/", f"/{uid}"
        holders = [holder for holder in self._table.held if start in holder and holder.endswith(end)]
        live = [row for holder in holders for row in self._table.held[holder].values() if row.lease_end > now]
        for row in live:
            holder = row.holder or ""
            row.refunds += 1
            if counted := row.refunds > MAX_REFUNDS:
                self._table.note(row, "its worker ended", holder, now)
            self._release(row, holder, now, touched, counted=counted)
        self._wake_all(touched)
        return len(live)

    async def cancel(self, ids: Sequence[str], reason: str, scope: Scope) -> list[CancelVerdict]:
        now = self._now()
        touched: Touched = {}
        verdicts = [self._cancel(id, reason, scope, now, touched) for id in ids]
        self._wake_all(touched)
        return verdicts

    def _cancel(self, id: str, reason: str, scope: Scope, now: int, touched: Touched) -> CancelVerdict:
        row = self._table.rows.get(id)
        if row is None or not row.in_scope(scope):
            return CancelVerdict(Canceled.NOT_FOUND)
        match row.state:
            case State.SUCCEEDED:
                return CancelVerdict(Canceled.SETTLED, row.state)
            case State.CANCELED:
                return CancelVerdict(Canceled.CANCELED, row.state)
            case State.LEASED:
                row.cancel_reason = row.cancel_reason or reason
                return CancelVerdict(Canceled.LEASED, row.state)
            case State.DEAD:
                self._table.undie(row)
            case _:
                self._table.withdraw(row)
                row.queue.tidy()
        row.cancel_reason = reason
        self._table.settle(row, State.CANCELED, now, touched)
        return CancelVerdict(Canceled.CANCELED, State.CANCELED)

    def _first(self, row: Row | None, holder: str, token: int, verb: str, args: object) -> LeaseVerdict:
        """The first verdict, if this very change was made before; else why it cannot be made."""
        ended = row.lease_ended(token) if row is not None else None
        if ended and ended.holder == holder and ended.verb == verb and ended.args == args:
            return ended.verdict
        return self._lost(row, holder, token)

    def _lost(self, row: Row | None, holder: str, token: int) -> LeaseVerdict:
        """Why this lease is not the caller's to change (any more)."""
        if row is None:
            return UNKNOWN
        ended = row.lease_ended(token)
        current = row.token == token and row.holder == holder
        if not current and (ended is None or ended.holder != holder):
            return UNKNOWN
        if row.state.settled:
            return LeaseVerdict(Held.SETTLED, state=row.state)
        if not current:
            return LeaseVerdict(Held.LOST, Lost.REGRANTED, row.holder if row.state is State.LEASED else None)
        return LeaseVerdict(Held.LOST, ended.lost if ended else row.ran_out())

    # --- Looking ---

    async def standing(self, ids: Sequence[str], scope: Scope) -> dict[str, tuple[str, State]]:
        self._now()
        return {row.new.id: (row.queue.name, row.state) for row in self._found(ids, scope)}

    async def items(self, ids: Sequence[str], scope: Scope, *, with_payload: bool = False) -> list[Item]:
        now = self._now()
        rows = self._found(ids, scope)
        size = sum(len(row.result) + (len(row.new.payload) if with_payload else 0) for row in rows)
        if size > MAX_GRANT_BYTES:
            raise ExhaustedError(f"these items are {size} bytes, more than {MAX_GRANT_BYTES}; ask for fewer")
        return [row.item(now, with_payload=with_payload) for row in rows]

    def _found(self, ids: Sequence[str], scope: Scope) -> list[Row]:
        return [row for id in ids if (row := self._table.rows.get(id)) is not None and row.in_scope(scope)]

    async def list_items(
        self, queue: str, matching: ItemFilter, scope: Scope, *, size: int, token: str
    ) -> Page:
        now = self._now()
        last = _number(token, "page_token")
        q = self._table.queues.get(queue)
        if q is None:
            return Page(())
        states = matching.states or _UNSETTLED
        found: list[Item] = []
        if states == {State.DEAD}:
            rows = ((row.seq, row) for row in sorted(q.dead.values(), key=_seq) if row.seq > last)
        else:
            rows = q.items.after(last)  # type: ignore[assignment]
        for looked, (seq, row) in enumerate(rows):
            if len(found) == size or looked == SCAN:
                return Page(tuple(found), str(last))
            last = seq
            known = row.new.id in self._table.rows
            if known and row.state in states and row.matches(matching) and row.in_scope(scope):
                found.append(row.item(now, with_result=False))
        return Page(tuple(found))

    async def results(
        self, *, queue: str, group: str | None, ids: frozenset[str], scope: Scope, cursor: str, limit: int
    ) -> Results:
        now = self._now()
        last = _number(cursor, "cursor")
        found: list[Item] = []
        size = 0
        for seq, row in self._settled_after(last, queue, group, ids):
            known = row.new.id in self._table.rows
            if known and row.settled_seq == seq and row.in_scope(scope):
                size += len(row.result) + row.carried()
                if found and (len(found) == limit or size > MAX_GRANT_BYTES):
                    break
                found.append(row.item(now))
            last = seq
        return Results(tuple(found), str(last))

    def _settled_after(
        self, last: int, queue: str, group: str | None, ids: frozenset[str]
    ) -> Iterator[tuple[int, Row]]:
        if ids:
            rows = [row for id in ids if (row := self._table.rows.get(id)) and row.state.settled]
            rows.sort(key=lambda row: row.settled_seq)
            return ((row.settled_seq, row) for row in rows if row.settled_seq > last)
        q = self._table.queues.get(queue)
        if q is None:
            return iter(())
        if group is None:
            return q.results.after(last)
        return q.groups[group].results.after(last) if group in q.groups else iter(())

    async def unsettled(self, *, queue: str, group: str | None, scope: Scope) -> int:
        q = self._table.queues.get(queue)
        if q is None or not scope.sees_queue(queue):
            return 0
        if group is not None:
            rows = q.groups[group].unsettled.values() if group in q.groups else ()
            return sum(1 for _ in islice((row for row in rows if row.in_scope(scope)), 1000))
        if scope.submitter is None and scope.holder is None:
            return min(q.backlog, 1000)
        held = self._table.held.get(scope.holder or "", {}).values()
        others = sum(row.queue is q and row.new.submitter != scope.submitter for row in held)
        return min(q.submitters.get(scope.submitter or "", 0) + others, 1000)

    # --- Queues ---

    async def queues(self, names: Sequence[str] | None, namespace: str | None) -> list[QueueStats]:
        now = self._now()
        known = self._table.queues
        if names is None:
            prefix = "" if namespace is None else namespace + "/"
            names = [name for name in known if name.startswith(prefix)]
        return [known[name].stats(now) for name in sorted(set(names)) if name in known]

    async def policy(self, queue: str) -> Policy | None:
        q = self._table.queues.get(queue)
        return None if q is None else q.policy

    async def configure(self, queue: str, changes: Mapping[str, object]) -> QueueStats:
        known = self._table.queues.get(queue)
        before = known.policy if known else Policy()
        policy = amend(before, changes, self._epoch)
        now = self._now()
        if known and policy.shards != before.shards:
            before.shards.check_unused(known.counts[State.LEASED])
        q = self._table.queue(queue)
        q.policy = policy
        touched = {queue: 0}
        if policy.shards != before.shards:
            q.divide()
            touched[queue] = EVERYBODY
        for key in list(q.chains):  # on_dead_head may no longer halt them
            self._table.promote(q, key, now, touched)
        self._wake_all(touched)
        return q.stats(now)

    async def pause(self, queue: str, *, paused: bool) -> QueueStats:
        q = self._table.queues.get(queue)
        if q is None:
            raise NotFoundError(f"no queue {queue}")
        q.paused = paused
        self._wake(queue, 0 if paused else q.counts[State.READY])
        return q.stats(self._clock())

    # --- Dead letters ---

    def _dead(self, queue: str, matching: ItemFilter, limit: int) -> tuple[list[Row], bool]:
        q = self._table.queues.get(queue)
        dead = [row for row in q.dead.values() if row.matches(matching)] if q else []
        return dead[:limit], len(dead) > limit

    async def redrive(self, queue: str, matching: ItemFilter, *, limit: int, per_second: float) -> Redriven:
        now = self._now()
        rows, more = self._dead(queue, matching, limit)
        touched: Touched = {}
        for n, row in enumerate(rows):
            self._table.undie(row)
            row.attempt = row.refunds = 0
            row.ready_at = now + int(n * 1000 / per_second) if per_second else 0
            row.expires_at = now + row.new.expires_in_ms if row.new.expires_in_ms else 0
            self._table.enter(row, now, touched)
        self._wake_all(touched)
        # A dead item keeps its dedupe key here, so nobody can have taken it.
        return Redriven(tuple(row.new.id for row in rows), (), more)

    async def purge(self, queue: str, matching: ItemFilter, *, limit: int) -> Purged:
        now = self._now()
        rows, more = self._dead(queue, matching, limit)
        touched: Touched = {}
        for row in rows:
            self._table.bury(row, now, touched)
        self._wake_all(touched)
        return Purged(len(rows), more)

    # --- Explaining and running ---

    async def ahead(self, id: str) -> tuple[str, State] | None:
        row = self._table.rows.get(id)
        if row is None or row.state is not State.BLOCKED or row.new.ordering_key is None:
            return None
        head = row.queue.chains[row.new.ordering_key][0]
        return head.new.id, head.state

    async def run(self) -> None:
        while True:
            self.sweep()
            await asyncio.sleep(TICK_MS / 1000)

    def sweep(self) -> None:
        """Let everything happen whose time has come."""
        touched: Touched = {}
        self._table.sweep(self._clock(), touched)
        self._wake_all(touched)

    async def check(self) -> None:
        return None


def _seq(row: Row) -> int:
    return row.seq


def _number(text: str, field: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidError(violations={field: "is not one that this store gave out"})
    return int(text)
