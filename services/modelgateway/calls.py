"""One call from the request to what it came to: reserved, relayed with failover, settled and recorded.

What happens to the caller does not change what is booked: settling is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.trace import SpanKind, StatusCode

from libs import telemetry
from libs.errors import MeshError, PreconditionError, UnavailableError
from libs.identity import Principal

from . import asked, metrics
from .asked import Asked, Operation
from .budgets import Budget, BudgetError, Hold, Record, Refusal, Request, Spend
from .failures import http_status
from .objects import Grant, Objects
from .pools import Endpoint
from .relay import DONE, Answer, Attempt, BrokenError, Event, Events, Provider, RelayError
from .routing import Router
from .store import Store
from .tokens import Meter

_log = logging.getLogger(__name__)

EXPIRY_SECONDS = 60.0
"""Added to a call's longest time: so long a reservation of a call that died is kept."""
_SETTLE_SECONDS = 30.0
_TIDY_SECONDS = 5.0
_MOST_UNSETTLED = 20_000


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    call_seconds: float = 600.0
    assumed_output: int = 4096


@dataclass(slots=True)
class Call:
    """What is known of a call that is under way."""

    caller: str
    grant: Grant
    ask: Asked
    meter: Meter
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    hold: Hold | None = None
    budgets: tuple[Budget, ...] = ()
    endpoint: str = ""
    first_byte: float | None = None
    attempts: int = 0
    status: int = 0
    error: str = ""
    has_ended: bool = False


class Gateway:
    """Takes calls; `run` keeps the store tidy meanwhile."""

    def __init__(
        self,
        objects: Objects,
        store: Store,
        provider: Provider,
        limits: Limits = Limits(),
    ) -> None:
        self._objects = objects
        self._store = store
        self._provider = provider
        self._limits = limits
        self._routers: dict[tuple[str, str], Router] = {}
        self._settling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                if expired := await self._store.tidy():
                    metrics.EXPIRED.inc(expired)
                    _log.warning("%d reservations of dead calls have expired", expired)
            except UnavailableError as error:
                _log.warning("cannot tidy up: %s", error)
            await asyncio.sleep(_TIDY_SECONDS)

    async def drain(self, seconds: float) -> None:
        """Until what calls came to is booked."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=seconds)

    async def call(
        self,
        caller: Principal,
        operation: Operation,
        body: bytes,
        *,
        pool: str = "",
        headers: Mapping[str, str] | None = None,
        streams: bool | None = None,
    ) -> Answer:
        """The answer to one request: whole, or its stream, whose reader gets BrokenError when it breaks off,
        and has to close it. MeshError; BudgetError if a budget does not allow it."""
        grant = self._objects.grant(caller, pool)
        ask = asked.read(operation, body, grant.pool, self._limits.assumed_output, streams=streams)
        call = Call(caller.id, grant, ask, Meter(len(body)))
        span = None
        if telemetry.tracing:
            span = telemetry.tracer().start_span(
                f"{operation.word} {ask.model}", kind=SpanKind.CLIENT, attributes=_attributes(call)
            )
        try:
            await self._reserve(call)
            answer = await self._relayed(call, headers or {})
        except BaseException as error:
            self._end(call, _class_of(error), _status_of(error), span)
            raise
        if answer.events is None:
            if not answer.error:
                call.meter.whole(answer.body)
            self._end(call, answer.error, answer.status, span)
            return answer
        return replace(answer, events=self._streamed(call, answer.events, span))

    async def _reserve(self, call: Call) -> None:
        pool = call.grant.pool
        call.budgets = pool.budgets_of(call.grant.agent, call.grant.fleet)
        if not call.budgets:
            return
        seconds = self._limits.call_seconds + EXPIRY_SECONDS
        request = Request(str(uuid.uuid4()), call.budgets, call.ask.tokens, seconds)
        reserving = asyncio.create_task(self._store.reserve(request))
        try:
            verdict = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            call.budgets = ()
            self._keep(self._give_back(reserving))
            raise
        except UnavailableError:
            if not pool.allows_unmetered:
                call.budgets = ()
                raise
            metrics.UNMETERED.labels(pool.namespace, pool.name).inc()
            _log.warning("the store is down: a call of pool %s goes on without a reservation", pool.name)
            return
        if isinstance(verdict, Refusal):
            call.budgets = ()
            raise BudgetError.of(verdict, call.ask.tokens)
        call.hold = verdict

    async def _give_back(self, reserving: asyncio.Task[Hold | Refusal]) -> None:
        with suppress(UnavailableError):  # then it expires
            verdict = await reserving
            if isinstance(verdict, Hold):
                await self._store.settle(Spend(verdict.id, None, 0, verdict))

    async def _relayed(self, call: Call, headers: Mapping[str, str]) -> Answer:
        pool, ask = call.grant.pool, call.ask
        key = pool.namespace, pool.name
        router = self._routers.get(key)
        if router is None:
            router = self._routers[key] = Router(list(pool.endpoints))
        else:
            router.update(list(pool.endpoints))
        untried = router.order(time.monotonic())
        deadline = call.began + self._limits.call_seconds
        try:
            while True:
                name = call.endpoint = untried[0]
                endpoint = pool.endpoints[name]
                try:
                    secret = await self._secret(pool.namespace, endpoint)
                    call.attempts += 1
                    answer = await self._provider.ask(Attempt(endpoint, ask, secret, headers, deadline))
                except RelayError as error:
                    untried.pop(0)
                    metrics.FAILURES.labels(*key, name, error.kind).inc()
                    if error.is_of_endpoint:
                        router.failed(name, time.monotonic(), error.retry_after)
                    _log.info("endpoint %s of pool %s failed: %s", name, pool.name, error)
                    has_time = time.monotonic() < deadline and error.is_of_endpoint
                    if untried and has_time and router.may_retry():
                        continue
                    if error.answer is None:
                        raise
                    return error.answer
                untried.pop(0)
                router.succeeded(name)
                call.first_byte = time.monotonic() - call.began
                return answer
        finally:
            router.unused(untried)

    async def _secret(self, namespace: str, endpoint: Endpoint) -> str:
        if endpoint.credential is None:
            return ""
        try:
            return await self._objects.secret(namespace, endpoint.credential)
        except (PreconditionError, UnavailableError) as error:
            raise RelayError(f"endpoint {endpoint.name} has no credential: {error}", "credential") from None

    async def _streamed(self, call: Call, events: Events, span: Any) -> AsyncGenerator[Event, None]:
        error, status = "left", 499  # unless it comes to an end here
        try:
            async with aclosing(events):
                async for event in events:
                    data = event.data
                    if data and data != DONE and call.meter.event(data) and call.ask.hides_usage:
                        continue
                    yield event
            error, status = "", 200
        except BrokenError as broken:
            error, status = broken.kind, 200
            raise
        finally:
            self._end(call, error, status, span)

    def _end(self, call: Call, error: str, status: int, span: Any) -> None:
        """Books the call, once, whoever still waits for it."""
        if call.has_ended:
            return
        call.has_ended, call.error, call.status = True, error, status
        pool, grant = call.grant.pool, call.grant
        seconds = time.monotonic() - call.began
        is_paid = call.attempts > 0 and error in ("", "left", "timeout", "broken_off", "too_large")
        used = call.meter.result(answered=is_paid)
        counted = metrics.series(
            pool.namespace,
            pool.name,
            call.endpoint,
            pool.label(call.ask.model),
            call.ask.operation.word,
        )
        counted.input.inc(used.input)
        counted.output.inc(used.output)
        counted.cached.inc(used.cached)
        counted.duration.observe(seconds)
        if call.first_byte is not None:
            counted.first.observe(call.first_byte)
        if error:
            metrics.ERRORS.labels(pool.namespace, pool.name, error).inc()
        record = Record(
            namespace=pool.namespace,
            pool=pool.name,
            agent=grant.agent,
            fleet=grant.fleet,
            caller=call.caller,
            model=call.ask.model,
            operation=int(call.ask.operation),
            endpoint=call.endpoint,
            status=status,
            error=error,
            started_at=call.started_at,
            seconds=seconds,
            first_byte=call.first_byte,
            input_tokens=used.input,
            output_tokens=used.output,
            cached_tokens=used.cached,
            estimated=used.estimated,
            attempts=call.attempts,
        )
        if span is not None:
            span.set_attribute("gen_ai.usage.input_tokens", used.input)
            span.set_attribute("gen_ai.usage.output_tokens", used.output)
            span.set_attribute("agentctl.model_endpoint", call.endpoint)
            if error:
                span.set_attribute("error.type", error)
                span.set_status(StatusCode.ERROR)
            span.end()
        self._keep(self._settle(Spend(str(uuid.uuid4()), record, used.total, call.hold, call.budgets)))

    async def _settle(self, spend: Spend) -> None:
        give_up = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                await self._store.settle(spend)
                return
            except UnavailableError as error:
                if time.monotonic() > give_up or len(self._settling) > _MOST_UNSETTLED:
                    metrics.UNSETTLED.inc()
                    _log.error(
                        "a call of pool %s could not be booked: %s",
                        spend.record.pool if spend.record else "",
                        error,
                        extra={"tokens": spend.tokens},
                    )
                    return
            await asyncio.sleep(1.0)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


def _attributes(call: Call) -> dict[str, str | bool]:
    return {
        "gen_ai.operation.name": call.ask.operation.word,
        "gen_ai.provider.name": call.grant.pool.provider,
        "gen_ai.request.model": call.ask.model,
        "gen_ai.request.stream": call.ask.streams,
        "agentctl.model_pool": f"{call.grant.pool.namespace}/{call.grant.pool.name}",
    }


def _class_of(error: BaseException) -> str:
    if isinstance(error, RelayError):
        return error.kind
    if isinstance(error, BudgetError):
        return "budget"
    return error.reason.lower() if isinstance(error, MeshError) else "left"


def _status_of(error: BaseException) -> int:
    return http_status(error) if isinstance(error, MeshError) else 499
