"""The servicer: check, authorise on the queue, act on the store, answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import ExhaustedError, MeshError, NotFoundError, ShardRequiredError, StaleShardError
from libs.identity import Kind, Principal
from libs.rpc.call import Call

from . import explain, wire
from .access import Access
from .rates import RateMeter
from .store import Store
from .waiting import Waiting
from .work import (
    MINUTE_MS,
    ClaimOrder,
    Grant,
    Granted,
    ItemFilter,
    Lease,
    Policy,
    QueueStats,
    Shard,
)

_POLL = 1.0  # seconds between two looks of a watch that nobody woke, in case a wake was lost on the way
_MARGIN = 0.2  # an empty answer leaves this long before the caller's deadline
_RESULTS_PAGE = 200
_MOST_QUEUES = 2000  # in one answer; a namespace has at most half as many
_PACE = 0.05  # seconds at least between two looks of one watch: what settles together leaves together
_MOST_REFUSED = 10_000  # queues whose last refused claim is remembered
_ANSWER_BYTES = 3_500_000  # callers take 4 MiB

Background = Callable[[Coroutine[object, object, None]], None]


class Coordination(pb_grpc.CoordinationServiceServicer):
    """Work with exactly one owner, over `store`; `background` runs a coroutine to its end elsewhere."""

    def __init__(self, store: Store, waiting: Waiting, background: Background) -> None:
        self._store = store
        self._waiting = waiting
        self._background = background
        self._meter = RateMeter()
        self._known: dict[str, Access] = {}
        self._refused: dict[str, tuple[float, Shard | None]] = {}  # queue → the last, by the monotonic clock

    # --- Work ---

    async def Submit(self, request: pb.SubmitRequest, context: object) -> pb.SubmitResponse:
        access = self._access(context)
        queue = wire.queue_name(request.queue)
        policy = await self._store.policy(queue)
        access.check(queue, policy)
        items = wire.items_from_pb(request.items, policy or Policy(), access.submitter)
        return wire.submit_response(await self._store.submit(queue, items))

    async def Claim(self, request: pb.ClaimRequest, context: object) -> pb.ClaimResponse:
        began = time.monotonic()
        access = self._access(context)
        orders = await self._orders(request, "", access)
        wait_ms = wire.wait_ms(request)
        granted, asked = await self._look(orders)
        if not granted.grants and wait_ms and not self._waiting.draining:
            left = Call.of(context).time_remaining() - _MARGIN
            granted, asked = await self._park(orders, min(wait_ms / 1000, left))
        return self._hand_over(context, access, granted, asked - began)

    async def Renew(self, request: pb.RenewRequest, context: object) -> pb.RenewResponse:
        access = self._access(context)
        leases = wire.leases_from_pb(request.leases)
        lease_ms = wire.lease_ms(request, "", [Policy(min_lease_ms=100, max_lease_ms=24 * 60 * MINUTE_MS)])
        verdicts = await self._store.renew(access.holder, leases, lease_ms)
        return pb.RenewResponse(verdicts=wire.lease_verdicts(verdicts))

    async def Ack(self, request: pb.AckRequest, context: object) -> pb.AckResponse:
        began = time.monotonic()
        access = self._access(context)
        acks = wire.acks_from_pb(request.acks)
        orders: list[ClaimOrder] = []
        if request.HasField("claim_next"):
            orders = await self._orders(request.claim_next, "claim_next.", access)
            wire.wait_ms(request.claim_next, "claim_next.")
        response = pb.AckResponse(verdicts=wire.lease_verdicts(await self._store.ack(access.holder, acks)))
        if orders and not self._waiting.draining:
            try:
                granted, asked = await self._look(orders)
            except MeshError as error:  # the acks have committed and must be answered
                response.claim_error = f"{error.reason}: {error}"
            else:
                response.claim.CopyFrom(self._hand_over(context, access, granted, asked - began))
        return response

    async def Fail(self, request: pb.FailRequest, context: object) -> pb.FailResponse:
        access = self._access(context)
        failures = wire.failures_from_pb(request.failures)
        verdicts = await self._store.fail(access.holder, failures)
        return pb.FailResponse(verdicts=wire.lease_verdicts(verdicts))

    async def Release(self, request: pb.ReleaseRequest, context: object) -> pb.ReleaseResponse:
        access = self._access(context)
        leases = wire.leases_from_pb(request.leases)
        verdicts = await self._store.release(access.holder, leases, wire.reason(request.reason))
        return pb.ReleaseResponse(verdicts=wire.lease_verdicts(verdicts))

    async def Cancel(self, request: pb.CancelRequest, context: object) -> pb.CancelResponse:
        access = self._access(context)
        ids = wire.ids_from_pb(request.item_ids, "item_ids")
        verdicts = await self._store.cancel(ids, wire.reason(request.reason), access.scope)
        return pb.CancelResponse(
            verdicts=[
                pb.CancelVerdict(status=int(v.status), state=int(v.state or 0))  # type: ignore[arg-type]
                for v in verdicts
            ]
        )

    async def ReleaseWorker(
        self, request: pb.ReleaseWorkerRequest, context: object
    ) -> pb.ReleaseWorkerResponse:
        namespace = wire.namespace_name(request.namespace)
        self._access(context).check_namespace(namespace)
        uid = wire.pod_uid(request.pod_uid)
        caller = Call.of(context).caller
        if caller.kind is Kind.AGENT and caller.uid != uid:  # its own: what a process of it held that died
            raise NotFoundError(f"no pod {uid}")
        count = await self._store.release_worker(namespace, uid, wire.reason(request.reason))
        return pb.ReleaseWorkerResponse(released_count=count)

    # --- Looking ---

    async def GetItems(self, request: pb.GetItemsRequest, context: object) -> pb.GetItemsResponse:
        scope = self._access(context).scope
        ids = wire.ids_from_pb(request.item_ids, "item_ids", 100 if request.include_payload else 1000)
        items = await self._store.items(ids, scope, with_payload=request.include_payload)
        found = {item.id for item in items}
        response = pb.GetItemsResponse(
            items=[wire.item_to_pb(item) for item in items],
            missing_ids=[id for id in ids if id not in found],
        )
        if response.ByteSize() > _ANSWER_BYTES:
            raise ExhaustedError(f"these items are more than {_ANSWER_BYTES} bytes; ask for fewer")
        return response

    async def ListItems(self, request: pb.ListItemsRequest, context: object) -> pb.ListItemsResponse:
        access = self._access(context)
        queue = await self._visible(request.queue, access)
        size = wire.page_size(request.page_size)
        matching = wire.list_filter(request)
        items, token = await self._list(queue, matching, access, size, request.page_token)
        return pb.ListItemsResponse(items=items, next_page_token=token)

    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, context: object
    ) -> pb.ListDeadLettersResponse:
        access = self._access(context)
        queue = await self._visible(request.queue, access)
        size = wire.page_size(request.page_size)
        matching = wire.dead_filter(request.filter)
        items, token = await self._list(queue, matching, access, size, request.page_token)
        return pb.ListDeadLettersResponse(items=items, next_page_token=token)

    async def _list(
        self, queue: str, matching: ItemFilter, access: Access, size: int, token: str
    ) -> tuple[list[work_pb2.Item], str]:
        """A page that fits an answer."""
        while True:
            page = await self._store.list_items(queue, matching, access.scope, size=size, token=token)
            items = [wire.item_to_pb(item, with_result=False) for item in page.items]
            if size == 1 or _fits(items):
                return items, page.next_token
            size = max(1, size // 4)

    async def WatchResults(
        self, request: pb.WatchResultsRequest, context: object
    ) -> AsyncIterator[pb.WatchResultsResponse]:
        access = self._access(context)
        ids: frozenset[str] = frozenset()
        queue = ""
        if request.item_ids:
            if request.queue or request.group:
                raise wire.invalid("item_ids", "cannot stand together with queue or group")
            ids = frozenset(wire.ids_from_pb(request.item_ids, "item_ids"))
            queues = await self._queues_of(ids, access)
        else:
            queue = await self._visible(request.queue, access)
            queues = frozenset({queue})
        group = wire.text(request.group, "group", 256) or None
        look = partial(self._store.results, queue=queue, group=group, ids=ids, scope=access.scope)
        cursor = request.cursor
        clock = asyncio.get_running_loop().time
        look_at = 0.0
        with self._waiting.watch(queues) as moved:
            while True:
                if (early := look_at - clock()) > 0:
                    await asyncio.sleep(early)
                look_at = clock() + _PACE
                moved.clear()
                self._waiting.check()
                ends = bool(ids) or not request.follow
                over = ends and await self._all_settled(queue, group, ids, access)
                results = await look(cursor=cursor, limit=_RESULTS_PAGE)
                cursor = results.cursor
                if results.items:
                    items = [wire.item_to_pb(item) for item in results.items]
                    yield pb.WatchResultsResponse(results=items, cursor=cursor)
                elif over and not results.held_back:
                    return
                else:
                    await _signal(moved, _POLL)

    async def _queues_of(self, ids: frozenset[str], access: Access) -> frozenset[str]:
        """The queues of these items, each of which must be there for the caller."""
        found = await self._store.standing(sorted(ids), access.scope)
        if missing := sorted(ids - found.keys()):
            raise NotFoundError(f"{len(missing)} of these items not found, the first is {missing[0]}")
        return frozenset(queue for queue, _ in found.values())

    async def _all_settled(self, queue: str, group: str | None, ids: frozenset[str], access: Access) -> bool:
        if ids:
            found = await self._store.standing(sorted(ids), access.scope)
            return all(state.settled for _, state in found.values())
        return not await self._store.unsettled(queue=queue, group=group, scope=access.scope)

    # --- Queues ---

    async def GetQueues(self, request: pb.GetQueuesRequest, context: object) -> pb.GetQueuesResponse:
        access = self._access(context)
        names, namespace = self._which(request.queues, request.namespace, access)
        queues = await self._queues(names, namespace, access)
        if len(queues) > _MOST_QUEUES:
            raise ExhaustedError(f"{len(queues)} queues are too many for an answer; ask by namespace")
        return pb.GetQueuesResponse(queues=queues)

    async def WatchQueues(
        self, request: pb.WatchQueuesRequest, context: object
    ) -> AsyncIterator[pb.WatchQueuesResponse]:
        access = self._access(context)
        names, namespace = self._which(request.queues, request.namespace, access)
        interval = wire.interval_ms(request) / 1000
        sent: dict[str, tuple[object, ...]] = {}
        first = True
        with self._waiting.watch(None if names is None else frozenset(names)) as moved:
            while True:
                moved.clear()
                self._waiting.check()
                found = await self._found(names, namespace, access)
                numbers = {stats.name: self._numbers(stats) for stats in found}
                news = [stats for stats in found if sent.get(stats.name) != numbers[stats.name]]
                if news or first:
                    # The first picture ends with a message of fewer than the most.
                    for start in range(0, len(news) + first, _MOST_QUEUES):
                        some = [self._queue(stats) for stats in news[start : start + _MOST_QUEUES]]
                        yield pb.WatchQueuesResponse(queues=some)
                sent = numbers
                first = False
                await _signal(self._waiting.drained, interval)
                await _signal(moved, _POLL)

    async def ConfigureQueue(
        self, request: pb.ConfigureQueueRequest, context: object
    ) -> pb.ConfigureQueueResponse:
        access = self._access(context)
        queue = wire.queue_name(request.queue)
        current = await self._store.policy(queue)
        access.check(queue, current)
        changes = wire.policy_changes(request.policy, current or Policy())
        try:
            stats = await self._store.configure(queue, changes)
        except ValueError as contradiction:
            field, _, why = str(contradiction).partition(": ")
            raise wire.invalid("policy." + field, why) from None
        return pb.ConfigureQueueResponse(queue=self._queue(stats))

    async def PauseQueue(self, request: pb.PauseQueueRequest, context: object) -> pb.PauseQueueResponse:
        queue = await self._visible(request.queue, self._access(context))
        return pb.PauseQueueResponse(queue=self._queue(await self._store.pause(queue, paused=True)))

    async def ResumeQueue(self, request: pb.ResumeQueueRequest, context: object) -> pb.ResumeQueueResponse:
        queue = await self._visible(request.queue, self._access(context))
        return pb.ResumeQueueResponse(queue=self._queue(await self._store.pause(queue, paused=False)))

    # --- Dead letters ---

    async def Redrive(self, request: pb.RedriveRequest, context: object) -> pb.RedriveResponse:
        queue = await self._visible(request.queue, self._access(context))
        limit = wire.limit(request.limit)
        if not 0 <= request.per_second <= 1_000_000:
            raise wire.invalid("per_second", "must be 0 to 1000000")
        done = await self._store.redrive(
            queue, wire.dead_filter(request.filter), limit=limit, per_second=request.per_second
        )
        return pb.RedriveResponse(item_ids=done.ids, duplicate_ids=done.duplicates, more=done.more)

    async def Purge(self, request: pb.PurgeRequest, context: object) -> pb.PurgeResponse:
        queue = await self._visible(request.queue, self._access(context))
        matching = wire.dead_filter(request.filter)
        everything = matching == ItemFilter(matching.states)
        if everything and not request.all:
            raise wire.invalid("filter", "must narrow the set, or `all` must be true")
        if request.all and not everything:
            raise wire.invalid("all", "must not be set together with a filter")
        done = await self._store.purge(queue, matching, limit=wire.limit(request.limit))
        return pb.PurgeResponse(purged_count=done.count, more=done.more)

    async def Explain(self, request: pb.ExplainRequest, context: object) -> pb.ExplainResponse:
        access = self._access(context)
        if bool(request.queue) == bool(request.item_id):
            raise wire.invalid("queue", "exactly one of queue and item_id must be set")
        if request.queue:
            queue = await self._visible(request.queue, access)
            item = None
        else:
            id = wire.item_id(request.item_id, "item_id")
            found = await self._store.items([id], access.scope)
            if not found:
                raise NotFoundError(f"no item {id}")
            item = found[0]
            queue = item.queue
        stats = (await self._store.queues([queue], None))[0]
        ahead = await self._store.ahead(item.id) if item else None
        waiting = self._waiting
        refused = None
        if (last := self._refused.get(queue)) is not None:
            refused = explain.Refused(last[1], time.monotonic() - last[0])
        obstacles = explain.obstacles(
            stats, item, ahead, waiting.parked(queue), waiting.shards(queue), refused
        )
        return pb.ExplainResponse(
            obstacles=[pb.Obstacle(code=code, detail=detail) for code, detail in obstacles],
            queue=self._queue(stats),
            item=wire.item_to_pb(item) if item else None,
        )

    # --- What the methods share ---

    def _access(self, context: object) -> Access:
        caller: Principal = Call.of(context).caller
        if (access := self._known.get(caller.id)) is None:
            if len(self._known) > 10_000:
                self._known.clear()
            access = self._known[caller.id] = Access.of(caller)
        return access

    async def _orders(self, request: pb.ClaimRequest, path: str, access: Access) -> list[ClaimOrder]:
        policies = []
        for queue in wire.queue_names(request.queues, path + "queues", 16):
            policy = await self._store.policy(queue)
            access.check(queue, policy)
            if policy is not None:
                policies.append(policy)
        return wire.claim_from_pb(request, path, access.holder, policies)

    async def _look(self, orders: Sequence[ClaimOrder]) -> tuple[Granted, float]:
        """What is granted, and when that was asked of the store: the leases may run since then, whatever the
        commit and the way back took.
        """
        more = False
        for order in orders:
            asked = time.monotonic()
            try:
                granted = await self._store.claim(order)
            except (StaleShardError, ShardRequiredError):
                if len(self._refused) > _MOST_REFUSED:
                    self._refused.clear()
                self._refused[order.queue] = time.monotonic(), order.shard
                raise
            if granted.grants:
                return granted, asked
            more |= granted.more
        return Granted((), more), time.monotonic()

    async def _park(self, orders: Sequence[ClaimOrder], wait: float) -> tuple[Granted, float]:
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        first = orders[0]
        shard = None if first.shard is None else first.shard.index
        with self._waiting.waiter([order.queue for order in orders], first.holder, shard) as waiter:
            while True:
                waiter.arm()
                granted, asked = await self._look(orders)
                left = end - clock()
                if granted.grants or left <= 0 or self._waiting.draining:
                    break
                if not granted.more:
                    await waiter.wait(left)
        if granted.grants:  # our wake may have been for what we have not looked at
            names = [order.queue for order in orders]
            for name in names[names.index(granted.grants[0].queue) + (not granted.more) :]:
                self._waiting.wake(name, 1)
        return granted, asked

    def _hand_over(
        self, context: object, access: Access, granted: Granted, waited: float
    ) -> pb.ClaimResponse:
        if granted.grants:
            Call.of(context).on_undelivered(partial(self._take_back, access.holder, granted.grants))
        return wire.claim_response(granted, int(waited * 1000))

    def _take_back(self, holder: str, grants: Sequence[Grant]) -> None:
        leases = [Lease(grant.id, grant.token) for grant in grants]
        self._background(self._store.take_back(holder, leases))

    async def _visible(self, name: str, access: Access) -> str:
        """The checked name of a queue that exists and that the caller may see."""
        queue = wire.queue_name(name)
        policy = await self._store.policy(queue)
        access.check(queue, policy)
        if policy is None:
            raise NotFoundError(f"no queue {queue}")
        return queue

    def _which(
        self, names: Sequence[str], namespace: str, access: Access
    ) -> tuple[list[str] | None, str | None]:
        if names:
            return wire.queue_names(names, "queues"), None
        if namespace:
            access.check_namespace(wire.namespace_name(namespace))
        return None, namespace or access.namespace

    async def _queues(
        self, names: Sequence[str] | None, namespace: str | None, access: Access
    ) -> list[work_pb2.Queue]:
        return [self._queue(stats) for stats in await self._found(names, namespace, access)]

    async def _found(
        self, names: Sequence[str] | None, namespace: str | None, access: Access
    ) -> list[QueueStats]:
        found = await self._store.queues(names, namespace)
        return [stats for stats in found if access.may_use(stats.name, stats.policy)]

    def _queue(self, stats: QueueStats) -> work_pb2.Queue:
        rates = self._meter.observe(stats, asyncio.get_running_loop().time())
        return wire.queue_to_pb(stats, rates, self._waiting.parked(stats.name))

    def _numbers(self, stats: QueueStats) -> tuple[object, ...]:
        """What a watcher wants to hear of: ages and rates move by themselves and are no news."""
        self._meter.observe(stats, asyncio.get_running_loop().time())
        return (
            stats.ready, stats.delayed, stats.blocked, stats.leased, stats.dead,
            stats.submitted_total, stats.granted_total, stats.settled_total, stats.paused,
            self._waiting.parked(stats.name), stats.policy,
        )  # fmt: skip


def _fits(items: Sequence[work_pb2.Item]) -> bool:
    return sum(item.ByteSize() for item in items) <= _ANSWER_BYTES


async def _signal(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
