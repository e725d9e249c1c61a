"""Claims on the agent's behalf: each item is a run of the agent, and its lease is ours to renew."""

from __future__ import annotations

import asyncio
import logging

import anyio

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.contract.events import Ring
from libs.contract.metrics import CLAIMS_GRANTED, CLAIMS_LOST, CLAIMS_RELEASED
from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.errors import DeadlineError, ExhaustedError, ExistsError, MeshError, UnavailableError
from libs.identity import Principal
from libs.work import Client, Fatal, Release, Result, Retry, Task, Worker

from .runs import Entry
from .work import Work

_RESULT_TYPE = "text/plain; charset=utf-8"
_PATIENCE_SECONDS = 10.0  # with an agent that takes no run now
_LOOK_SECONDS = 0.5
_FOR_GOOD = (
    Status.REFUSED,
    Status.CANCELLED,
    Status.TOO_LARGE,
    Status.EXHAUSTED_STEPS,
    Status.EXHAUSTED_TOKENS,
    Status.DEADLINE,
    Status.DEPTH,
    Status.LOOP_DETECTED,
)
_log = logging.getLogger(__name__)


class Claims:
    """The handler of a `Worker`."""

    def __init__(self, work: Work, events: Ring) -> None:
        self._work = work
        self._events = events

    async def handle(self, task: Task) -> Result:
        """One item, from payload to result."""
        CLAIMS_GRANTED.inc()
        self._events.tell("item.claimed", task.id, queue=task.queue, attempt=task.attempt)
        try:
            entry = await self._begin(task, _text(task.payload))
            return await self._end(task, entry)
        except Release:
            CLAIMS_RELEASED.inc()
            raise

    async def _end(self, task: Task, entry: Entry) -> Result:
        try:
            await self._work.runs.over(entry)
        except asyncio.CancelledError:
            status = (
                Status.LOST if task.lost else Status.DRAINED if self._work.is_draining else Status.CANCELLED
            )
            (CLAIMS_LOST if task.lost else CLAIMS_RELEASED).inc()
            self._events.tell("item.lost" if task.lost else "item.settled", task.id, outcome="released")
            self._work.give_up(entry, status)
            raise
        return self._settled(task, entry)

    def _settled(self, task: Task, entry: Entry) -> Result:
        outcome = _outcome(entry)
        self._events.tell("item.settled", task.id, outcome=outcome)
        match outcome:
            case "acked":
                return Result(entry.result.encode(errors="replace"), _RESULT_TYPE)
            case "released":
                raise Release(entry.error)
            case "failed":
                raise Fatal(entry.error)
            case _:
                raise Retry(f"{entry.status}: {entry.error}", entry.retry_after)

    async def _begin(self, task: Task, text: str) -> Entry:
        """A run of the agent. One that takes none is waited for a while; then the item is given back, so that
        another agent may have it."""
        why = ""
        with anyio.move_on_after(_PATIENCE_SECONDS):
            while True:
                try:
                    entry = self._work.runs.begin(task.id, Trigger.ITEM, text)
                    await self._work.begin(entry, text)
                except (ExhaustedError, ExistsError, UnavailableError) as error:
                    why = str(error)
                except DeadlineError as error:  # it may have begun all the same
                    raise Retry(str(error)) from error
                else:
                    return entry
                with anyio.move_on_after(_LOOK_SECONDS):
                    await self._work.changed()
        raise Release(why or "the agent takes no run")


def _outcome(entry: Entry) -> str:
    if entry.status is Status.COMPLETED:
        return "acked"
    if entry.status is Status.DRAINED or entry.may_go_elsewhere:
        return "released"
    return "failed" if entry.status in _FOR_GOOD and not entry.may_pass else "retried"


def _text(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise Fatal(f"the payload is not UTF-8: {error.reason} at byte {error.start}") from error
    if not text.strip():
        raise Fatal("the payload is empty")
    return text


async def claiming(worker: Worker, handler: Claims, client: Client, me: Principal) -> None:
    """Claims until drained. MeshError if that is not allowed, and no retry can mend it."""
    await _take_back(client, me)
    await worker.run(handler.handle)


async def _take_back(client: Client, me: Principal) -> None:
    """A bridge of this pod that was killed held items; nobody needs to wait for their leases to end."""
    request = pb.ReleaseWorkerRequest(namespace=me.namespace, pod_uid=me.uid, reason="started again")
    try:
        if count := (await client.stub.ReleaseWorker(request)).released_count:
            _log.info("gave back what a killed process of this pod held", extra={"items": count})
    except MeshError as error:  # then they end by themselves
        _log.warning("cannot give back what this pod held", extra={"reason": str(error)})
