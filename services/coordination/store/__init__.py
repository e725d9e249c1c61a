"""What a store of work promises. `tests/test_store.py` holds every implementation to it.

Common promises. Arguments have been checked; an entry never harms another one. Verdicts come in the
order of the entries. When a call returns, its changes are as durable as the store is; when it raises
UnavailableError, nothing is known and the call may be repeated: a repeat gets the first verdict. Time
is the store's own clock. A cancelled caller withdraws only what has not been started.

A lease is live until its end by the store's clock. A token is larger than every earlier token of the
store, ends of timelines included; it is changed by nothing but a grant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ..work import (
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
    State,
    SubmitVerdict,
)

Wake = Callable[[str, int], None]
"""`wake(queue, n)`: about n more items became ready or settled in that queue (n = 0: something else
about it changed). May come early or twice, never not at all. An empty queue name means: look at all."""

EVERYBODY = 1 << 30
"""As many as wait, whatever there is: they must hear that the queue is divided in another way."""


class Store(ABC):
    """Items, leases, results and dead letters of all queues. Queues are `namespace/name`."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake

    # Work

    @abstractmethod
    async def submit(self, queue: str, items: Sequence[NewItem]) -> list[SubmitVerdict]:
        """Add items; makes the queue, with the default policy, if it is new.

        ACCEPTED also answers an id that is known with the same payload, queue and dedupe key, whatever
        became of it; ID_CONFLICT one that is known with others. DUPLICATE: an unsettled item (dead ones
        are unsettled here) holds the dedupe key, or one settled within the queue's window. FULL: the
        queue's unsettled items have reached its cap. Ids are looked at before keys, keys before the cap.
        An item with an ordering key is BLOCKED unless the key has no unsettled item (under HALT a dead
        one counts). ExhaustedError: the namespace has its most queues.
        """

    @abstractmethod
    async def claim(self, order: ClaimOrder) -> Granted:
        """Lease ready items of one queue to `holder`: higher priority first, then older first.

        Each grant counts an attempt and takes a new token. Payloads are cut to max_bytes before anything
        is leased, but never below one item. Nothing is granted from a paused or unknown queue. With a
        request_id whose grants (to this holder) live in part, those are answered with the time left;
        InvalidError if request_args differ. `more`: at least one item stayed ready; beside no grant: items of
        a queue that was divided anew are still on their way, ask again at once. With dedupe_key: only
        the item that holds it. If the caller was cancelled after the grant was made, the store takes it
        back uncounted and voids the request_id, at most MAX_REFUNDS times an item. Never writes when it
        grants nothing, unless the queue was divided anew.

        With a shard: only items of it, and `more` speaks of those. StaleShardError, ShardRequiredError: the
        queue is not divided as the order says, at the moment of the grant.
        """

    @abstractmethod
    async def renew(self, holder: str, leases: Sequence[Lease], lease_ms: int | None) -> list[LeaseVerdict]:
        """Set the end of live leases of this holder to now + lease_ms (None: the queue's default), within
        the queue's bounds and at most max_hold after the grant. OK(expires_in, cancel_requested), or LOST
        (EXPIRED, MAX_HOLD when no time is left to give, RELEASED, FAILED, REGRANTED(holder), UNKNOWN), or
        SETTLED(state).
        """

    @abstractmethod
    async def ack(self, holder: str, acks: Sequence[AckOrder]) -> list[LeaseVerdict]:
        """Settle items as SUCCEEDED with their results. OK while (id, token) is the last grant, was made to
        this holder and the item is unsettled: also after the lease ended, while nobody was granted it since
        and it was not given back (it may be READY again by expiry). The same ack again: OK. Another result
        after an ack, or an ack after another settle: SETTLED(state). Else LOST. Promotes the next item of
        its ordering key.
        """

    @abstractmethod
    async def fail(self, holder: str, failures: Sequence[FailOrder]) -> list[LeaseVerdict]:
        """End live leases with an error, kept in the item's history (last MAX_FAILURES). Retryable and
        attempts left: DELAYED by the larger of backoff and retry_after, OK(retry_in). Else DEAD,
        OK(state DEAD). A cancel that was asked for: CANCELED, OK(state CANCELED). The same fail again:
        the first verdict. A lease that is not live: as for renew.
        """

    @abstractmethod
    async def release(self, holder: str, leases: Sequence[Lease], reason: str) -> list[LeaseVerdict]:
        """Give live leases back, READY at once in a new place at the end of their priority, uncounted. A
        cancel that was asked for: CANCELED, OK(state CANCELED). The same release again: OK. A lease that is
        not live: as for renew.
        """

    @abstractmethod
    async def take_back(self, holder: str, leases: Sequence[Lease]) -> None:
        """Undo grants whose answer never reached the holder: READY again, uncounted, the request_id void.
        Compare-and-set on (id, token, holder), so a lease that ended otherwise is left alone. A grant
        of a claim that was repeated goes back when none of its answers arrived: each call is about one.
        After MAX_REFUNDS of them an item goes back counted.
        """

    @abstractmethod
    async def cancel(self, ids: Sequence[str], reason: str, scope: Scope) -> list[CancelVerdict]:
        """Unheld items, dead ones included, become CANCELED; held ones are marked (LEASED). A canceled item
        again: CANCELED. SETTLED(state) when it succeeded. NOT_FOUND when it is unknown or out of scope.
        """

    @abstractmethod
    async def release_worker(self, namespace: str, uid: str, reason: str) -> int:
        """Release every live lease whose holder is the pod `uid` in `namespace`; how many there were. After
        MAX_REFUNDS of these and of `take_back` together an item goes back counted, with a failure; DEAD
        if that was its last attempt.
        """

    # Looking

    @abstractmethod
    async def standing(self, ids: Sequence[str], scope: Scope) -> dict[str, tuple[str, State]]:
        """Queue and state of those of these items that exist and are in scope. Reads nothing else of them."""

    @abstractmethod
    async def items(self, ids: Sequence[str], scope: Scope, *, with_payload: bool = False) -> list[Item]:
        """The items with these ids that exist and are in scope, in the order of ids. ExhaustedError, before
        they are read, if results, and payloads if asked for, are more than MAX_GRANT_BYTES together.
        """

    @abstractmethod
    async def list_items(
        self, queue: str, matching: ItemFilter, scope: Scope, *, size: int, token: str
    ) -> Page:
        """Items of a queue in scope, without results, oldest first. No states: all that are READY, DELAYED,
        BLOCKED or LEASED. Pages are stable: an item that stands still appears once. InvalidError: a token not
        ours.
        """

    @abstractmethod
    async def results(
        self,
        *,
        queue: str,
        group: str | None,
        ids: frozenset[str],
        scope: Scope,
        cursor: str,
        limit: int,
    ) -> Results:
        """Items settled (SUCCEEDED, DEAD or CANCELED) after `cursor` ("": from the beginning), in settle
        order: of a queue, of a group of it, or with these ids (queue ""). None is ever skipped: what a
        running transaction may still settle comes later, never before a cursor given out; what must wait for
        that is `held_back`. At most `limit`, and as few as keep what they carry within MAX_GRANT_BYTES, but
        at least one. InvalidError: a cursor not ours.
        """

    @abstractmethod
    async def unsettled(self, *, queue: str, group: str | None, scope: Scope) -> int:
        """How many items of the queue, or of a group of it, in scope are not settled yet, up to 1000
        (dead ones are settled here).
        """

    # Queues

    @abstractmethod
    async def queues(self, names: Sequence[str] | None, namespace: str | None) -> list[QueueStats]:
        """These queues, or (names None) those of a namespace, or of all (None); by name. Unknown names are
        left out. A zero has been looked for, not only counted.
        """

    @abstractmethod
    async def policy(self, queue: str) -> Policy | None:
        """The rules of a queue, None if there is none such. May be a second old, except for what this
        store object itself configured.
        """

    @abstractmethod
    async def configure(self, queue: str, changes: Mapping[str, object]) -> QueueStats:
        """Change these fields of the policy, making the queue if it is new. ValueError, nothing changed,
        when the bounds contradict each other (`work.amend`). ExhaustedError: the namespace has its most
        queues. A change of the count of `shards` re-places all items, some when they next get ready; parked
        claims are woken, so that they hear of it. Nothing is changed with StaleShardError, when it names an
        epoch that is not the queue's, and with QueueInUseError, when an item is LEASED at that moment.
        """

    @abstractmethod
    async def pause(self, queue: str, *, paused: bool) -> QueueStats:
        """Set or end the pause. After it returned with paused=True no grant commits. NotFoundError: no
        such queue.
        """

    # Dead letters

    @abstractmethod
    async def redrive(self, queue: str, matching: ItemFilter, *, limit: int, per_second: float) -> Redriven:
        """Put dead letters back, oldest first: attempts from zero, same policy, history kept, lifetime
        (expires_in) anew, spread over time if per_second > 0. One whose dedupe key is held by another item
        stays dead and is named in `duplicates`.
        """

    @abstractmethod
    async def purge(self, queue: str, matching: ItemFilter, *, limit: int) -> Purged:
        """Delete dead letters, oldest first; frees their dedupe keys, unhalts their ordering keys."""

    # Explaining and running

    @abstractmethod
    async def ahead(self, id: str) -> tuple[str, State] | None:
        """For a BLOCKED item: the id and state of its ordering key's head (DEAD under HALT)."""

    @abstractmethod
    async def run(self) -> None:
        """Expire leases and lifetimes, ready what was delayed, drop what retention allows: each within
        250 ms of its time (500 ms, if the replica that made the change died right after it, or lost the
        answer), waking waiters, until cancelled. Time in which no replica could do so
        (an outage, a frozen process) is added to every lease that was live when it began, and an expiry
        that overlaps it gives the attempt back.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raise UnavailableError, naming the reason, unless the store can commit: it did so within the last
        second and nothing else was heard since.
        """
