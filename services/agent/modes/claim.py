"""Claims work from one queue and hands the results back: a run is an item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import anyio

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.contract import metrics
from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.errors import InvalidError, MeshError, NotFoundError
from libs.exits import Exit
from libs.identity import Principal
from libs.work import Client, Fatal, Result, Retry, Shard, Task, Worker

from ..desk import Desk
from ..order import Ended, Live, Order
from ..steering import Engine

_RESULT_TYPE = "text/plain; charset=utf-8"
_log = logging.getLogger("agent")


class Claim:
    """Works on items until a drain, or until no item can be done any more."""

    def __init__(
        self,
        desk: Desk,
        engine: Engine,
        instruction: str,
        client: Client,
        me: Principal,
        queue: str,
        lease: timedelta,
        shard: Shard | None = None,
    ) -> None:
        self._desk = desk
        self._engine = engine
        self._instruction = instruction
        self._client = client
        self._me = me
        self._queue = queue
        self._shard = shard
        self._workers = [  # one for each slot
            Worker(client, [queue], lease=lease, shard=shard) for _ in range(desk.slots)
        ]
        self._busy: set[Worker] = set()
        self._unusable: Ended | None = None
        desk.on_change.append(self._follow)
        self._follow()

    async def run(self) -> Exit:
        """The process's end."""
        await self._take_back()
        refusal: BaseException | None = None
        known = {"queue": self._queue, "slots": self._desk.slots}
        _log.info("working", extra=known | ({"shard": str(self._shard)} if self._shard else {}))
        try:
            async with anyio.create_task_group() as tasks:
                for worker in self._workers:
                    tasks.start_soon(worker.run, partial(self._occupy, worker))
        except* MeshError as refused:  # claims are refused, and no retry can mend it
            refusal = refused.exceptions[0]
        if refusal:
            _log.error("may not claim", extra={"reason": str(refusal)})
            return Exit.USAGE if isinstance(refusal, InvalidError | NotFoundError) else Exit.SERVER
        if self._unusable:
            _log.error("stopped: no item can be done", extra={"reason": self._unusable.error})
            return Exit.INTELLIGENCE
        return Exit.OK

    def drain(self, deadline: timedelta) -> None:
        """Claim no more, and give back what is not done by then."""
        for worker in self._workers:
            worker.drain(deadline)

    async def check(self) -> None:
        """UnavailableError unless coordination answers."""
        await self._client.stub.GetQueues(pb.GetQueuesRequest(queues=[self._queue]))

    async def handle(self, task: Task) -> Result:
        """One item, from payload to result. Cancelled, it leaves the item to whoever cancelled it."""
        metrics.CLAIMS_GRANTED.inc()
        self._desk.events.tell("item.claimed", task.id, attempt=task.attempt)
        try:
            ended = await self._run(task)
            if ended.status is Status.DRAINED or ended.is_ours:
                await self._await_release(ended)
        except asyncio.CancelledError:
            (metrics.CLAIMS_LOST if task.lost else metrics.CLAIMS_RELEASED).inc()
            self._desk.events.tell("item.lost" if task.lost else "item.settled", task.id, outcome="released")
            raise
        return self._settle(task, ended)

    async def _run(self, task: Task) -> Ended:
        text = document(task.payload)
        order = Order(task.id, Trigger.ITEM, self._instruction, text if isinstance(text, str) else "")

        async def work(live: Live) -> Ended:
            return await self._engine.run(order, live) if isinstance(text, str) else text

        return await self._desk.execute(order, work, interrupted=self._interrupted(task))

    def _interrupted(self, task: Task) -> Callable[[], Status]:
        def status() -> Status:
            if task.lost:
                return Status.LOST
            return Status.DRAINED if self._desk.draining or self._unusable else Status.CANCELLED

        return status

    def _settle(self, task: Task, ended: Ended) -> Result:
        self._desk.events.tell("item.settled", task.id, outcome=ended.status)
        if ended.status is Status.COMPLETED:
            return Result(ended.text.encode(errors="replace"), _RESULT_TYPE)
        if ended.passes:
            raise Retry(ended.error, ended.retry_after)
        raise Fatal(ended.error)

    async def _await_release(self, ended: Ended) -> None:
        """Waits to be cancelled, which gives the item back, uncounted. A fault of our own stops the agent:
        no item should suffer for it."""
        if ended.is_ours and self._unusable is None:
            self._unusable = ended
            self.drain(timedelta(0))
        await asyncio.Event().wait()

    async def _take_back(self) -> None:
        """A process of this pod that was killed held items; nobody needs to wait for their leases to end."""
        me = self._me
        request = pb.ReleaseWorkerRequest(namespace=me.namespace, pod_uid=me.uid, reason="started again")
        try:
            if count := (await self._client.stub.ReleaseWorker(request)).released_count:
                _log.info("gave back what a killed process of this pod held", extra={"items": count})
        except MeshError as error:  # then they end by themselves
            _log.warning("cannot give back what this pod held", extra={"reason": str(error)})

    async def _occupy(self, worker: Worker, task: Task) -> Result:
        self._busy.add(worker)
        try:
            return await self.handle(task)
        finally:
            self._busy.discard(worker)
            self._follow()

    def _follow(self) -> None:
        """As many idle workers claim as there are free slots."""
        free = self._desk.free_slots if self._desk.is_open else 0
        idle = [worker for worker in self._workers if worker not in self._busy]
        for worker in idle[:free]:
            worker.resume()
        for worker in idle[free:]:
            worker.suspend()


def document(payload: bytes) -> str | Ended:
    """The text of an item, or how a run ends that has none."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        reason = f"the payload is not UTF-8: {error.reason} at byte {error.start}"
        return Ended(Status.FAILED, error=reason)
    return text if text.strip() else Ended(Status.FAILED, error="the payload is empty")
