"""Working on items: claim, run the handler, renew, fence, ack and claim the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import anyio
from opentelemetry.context import attach, detach

from libs import telemetry
from libs.errors import InvalidError, MeshError, ShardRequiredError, StaleShardError

from .claims import Options, Shard
from .client import Client
from .coalesce import TRANSIENT, pauses
from .errors import Fatal, Release, Retry
from .keeper import Held, Stop
from .task import Result, Task

Handler = Callable[[Task], Awaitable[bytes | Result | None]]

log = logging.getLogger(__name__)
_LAST_WORDS = 1.0  # how long a cancelled worker may take to settle or release what it holds


@dataclass(frozen=True, slots=True)
class _Failed:
    error: str
    retryable: bool = True
    after: timedelta | None = None


_Outcome = Result | _Failed | Release | Stop


class Worker:
    """Runs a handler on the items of some queues, `slots` at a time, holding no item without a free slot.

    The handler returns the result, or raises: Retry, Fatal and Release say what is to become of the item,
    any other exception fails the attempt. It runs in the submitter's trace context. It is cancelled (at each
    await until it ends, so shield what has to be awaited while cleaning up) when its lease is lost or about
    to end, when somebody cancels the item, and at the end of a drain. A handler that blocks the event loop
    cannot be cancelled, and its lease not renewed.

    With a `shard` it claims that shard's items. While the queue is divided otherwise there is no work for it:
    it keeps what it holds, asks now and then, and says so once.
    """

    def __init__(
        self,
        client: Client,
        queues: Sequence[str],
        *,
        slots: int = 1,
        lease: timedelta | None = None,
        wait: timedelta = timedelta(seconds=20),
        shard: Shard | None = None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._options = Options(tuple(queues), lease, shard=shard)
        self._wait = wait
        self._held: set[Held] = set()
        self._idle: set[anyio.CancelScope] = set()
        self._draining = False
        self._open = asyncio.Event()
        self._open.set()
        self._run: anyio.CancelScope | None = None
        self._ends: list[asyncio.TimerHandle] = []

    async def run(self, handler: Handler) -> None:
        """Work until cancelled or drained. Raises what no retry can mend: a claim that is not allowed, or
        malformed. Cancelled, it gives back what it holds.
        """
        try:
            async with anyio.create_task_group() as slots:
                self._run = slots.cancel_scope
                for _ in range(self._slots):
                    slots.start_soon(self._slot, handler)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for timer in self._ends:
                timer.cancel()

    def suspend(self) -> None:
        """Claim no more until `resume`; what is held is kept and worked on. A claim under way is withdrawn,
        and what it was granted all the same is given back.
        """
        self._open.clear()
        self._withdraw()

    def resume(self) -> None:
        """Claim again."""
        self._open.set()

    def drain(self, deadline: timedelta) -> None:
        """Claim no more; `run` returns when the handlers have finished, or, when `deadline` has passed,
        after the rest was cancelled and released.
        """
        self._draining = True
        self._withdraw()
        loop = asyncio.get_running_loop()
        self._ends += [
            loop.call_later(deadline.total_seconds(), self._stop),
            loop.call_later(deadline.total_seconds() + _LAST_WORDS, self._abort),
        ]

    @property
    def _claims(self) -> bool:
        return self._open.is_set() and not self._draining

    def _withdraw(self) -> None:
        for scope in self._idle:
            scope.cancel()

    def _stop(self) -> None:
        for held in self._held:
            held.end(Stop.DRAINED)

    def _abort(self) -> None:
        if self._run is not None:
            self._run.cancel()

    async def _slot(self, handler: Handler) -> None:
        backoff, refused = pauses(), pauses(2.0, 10.0)
        task: Task | None = None
        while not self._draining:
            if task is None:
                await self._idling(self._open.wait())
                try:
                    task = await self._claim()
                except TRANSIENT as error:
                    log.warning("cannot claim from %s, trying again: %s", self._options.queues, error)
                    await self._idling(asyncio.sleep(next(backoff)))
                except (StaleShardError, ShardRequiredError) as error:
                    self._refused(str(error))
                    await self._idling(asyncio.sleep(next(refused)))
                else:
                    refused = pauses(2.0, 10.0)
            if task is not None:
                backoff = pauses()
                task = await self._work(task, handler)

    async def _claim(self) -> Task | None:
        if not self._claims:
            return None
        tasks: list[Task] = []
        with anyio.CancelScope() as scope:
            self._idle.add(scope)
            try:
                tasks = await self._client.claim(
                    self._options.queues,
                    wait=self._wait,
                    lease=self._options.lease,
                    shard=self._options.shard,
                )
                self._refused("")
            finally:
                self._idle.discard(scope)
        if tasks and not self._claims:  # settled out here, since the scope is cancelled
            await self._give_back(tasks[0])
            return None
        return tasks[0] if tasks else None

    def _refused(self, why: str) -> None:
        """Logged once by all workers of the client that claim alike; empty: no longer."""
        refusals, options = self._client.refusals, self._options
        if why and refusals.get(options) != why:
            refusals[options] = why
            log.warning("nothing to claim from %s for %s: %s", options.queues, options.shard, why)
        elif not why and refusals and refusals.pop(options, ""):
            log.info("claiming from %s again", options.queues)

    async def _give_back(self, task: Task) -> None:
        await self._settle(task, Stop.DRAINED if self._draining else Stop.SUSPENDED)

    async def _idling(self, rest: Awaitable[object]) -> None:
        with anyio.CancelScope() as scope:
            self._idle.add(scope)
            try:
                await rest
            finally:
                self._idle.discard(scope)

    async def _work(self, task: Task, handler: Handler) -> Task | None:
        """Do one task; the next one, if there was one at once."""
        outcome: _Outcome = Stop.DRAINED
        try:
            outcome = await self._handle(task, handler)
            return await self._settle(task, outcome, claim=self._claims)
        except asyncio.CancelledError:
            with anyio.move_on_after(_LAST_WORDS, shield=True):
                await self._settle(task, outcome)
            raise

    async def _handle(self, task: Task, handler: Handler) -> _Outcome:
        outcome: _Outcome = Stop.LOST
        with anyio.CancelScope() as scope:
            held = self._client.keeper.hold(task, self._options.lease, scope)
            self._held.add(held)
            try:
                outcome = await _call(handler, task)
            finally:
                self._client.keeper.drop(held)
                self._held.discard(held)
        if held.stop is not None and not isinstance(outcome, Result):
            return held.stop
        return outcome

    async def _settle(self, task: Task, outcome: _Outcome, *, claim: bool = False) -> Task | None:
        try:
            if isinstance(outcome, Result):
                return await self._ack(task, outcome, claim=claim)
            if isinstance(outcome, _Failed):
                await self._client.fail(
                    task, outcome.error, retryable=outcome.retryable, retry_after=outcome.after
                )
                return None
            reason = outcome.value if isinstance(outcome, Stop) else str(outcome)
            if task.lost:
                log.warning("stopped working on %s: %s", task.id, reason)
            else:
                await self._client.release(task, reason)
        except MeshError as error:
            log.warning("could not settle %s: %s", task.id, error)
        return None

    async def _ack(self, task: Task, result: Result, *, claim: bool) -> Task | None:
        try:
            if not claim:
                await self._client.ack(task, result.payload, result.content_type)
                return None
            acked = await self._client.ack_and_claim(task, result.payload, result.content_type, self._options)
        except InvalidError as error:
            await self._client.fail(task, f"the result is not acceptable: {error}", retryable=False)
            return None
        if acked.error is not None:
            log.warning("could not settle %s: %s", task.id, acked.error)
        if acked.next is not None and not self._claims:
            await self._give_back(acked.next)
            return None
        return acked.next


async def _call(handler: Handler, task: Task) -> Result | _Failed | Release:
    context = attach(telemetry.extract(task.trace)) if task.trace else None
    try:
        result = await handler(task)
        return result if isinstance(result, Result) else Result(result or b"")
    except Retry as verdict:
        return _Failed(str(verdict), after=verdict.after)
    except Fatal as verdict:
        return _Failed(str(verdict), retryable=False)
    except Release as verdict:
        return verdict
    except asyncio.CancelledError as error:
        if _cancelled():
            raise
        log.warning("attempt %d at %s was cancelled from inside", task.attempt, task.id, exc_info=True)
        return _Failed(f"{type(error).__name__}: {error}")
    except Exception as error:  # the border to the user's code: whatever it raises is about this item only
        log.warning("attempt %d at %s failed", task.attempt, task.id, exc_info=True)
        return _Failed(f"{type(error).__name__}: {error}")
    finally:
        if context is not None:
            detach(context)


def _cancelled() -> bool:
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
