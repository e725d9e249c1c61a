"""The agent's calls of its model by run: held by a pause, cut by a cancel, counted by their answers.

The text of each run that we begin has a line in it that nobody can guess, and agentd repeats the text in
every call. A call without such a line is of what the agent does by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import anyio
from aiohttp import web

from libs.contract import metrics
from libs.contract.events import Ring
from libs.contract.run import Usage
from libs.contract.statuses import Status

from .replies import Said, said, unanswered

_MAX_HOLD_SECONDS = 100.0  # agentd gives up a call after 120 s
_MARKER = re.compile(r"input-[0-9a-f]{32}")
_CUT_STATUS = 409  # agentd tries 429 and 5xx again, and no other


class OwnAnswer(web.Response):
    """An answer that is not the model's. `failure` says why in the registry's words; empty: nobody failed."""

    def __init__(self, status: int, message: str, failure: str = "") -> None:
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": f"bridge: {message}", "type": kind, "code": status}
        super().__init__(status=status, text=json.dumps({"error": error}), content_type="application/json")
        self.failure = failure


@dataclass(eq=False)
class Gate:
    """What the calls of one run pass through; or those of all that is no run of ours."""

    run_id: str = ""
    began: datetime | None = None
    """When its first call came."""
    usage: Usage = field(default_factory=Usage)
    last: Said | None = None
    """What its last call came to."""
    was_cut: bool = False
    """A call of it was, or would have been."""
    waited_out: bool = False
    """Its last call was held for as long as can be, and then refused."""
    waiting: int = 0
    """Calls that are held."""
    is_over: bool = False
    on_change: Callable[[], None] = lambda: None
    _opened: asyncio.Event | None = None
    _calls: set[anyio.CancelScope] = field(default_factory=set)

    @property
    def holds(self) -> bool:
        """Whether it waits before its next step, and does nothing else: here, or to ask again after it has
        waited here for too long."""
        is_idle = self.waiting == len(self._calls)
        return self._opened is not None and is_idle and (self.waiting > 0 or self.waited_out)

    @property
    def final(self) -> Said | None:
        """What its last call came to, if a run can end with that; None while there is another."""
        return self.last if self.last and self.last.status and not self._calls else None

    def shut(self) -> None:
        """The next call is held."""
        self._opened = self._opened or asyncio.Event()

    def open(self) -> None:
        """What is held goes on."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
            self.on_change()

    def cut(self, *, for_good: bool) -> bool:
        """Ends calls under way, and all to come if it is for good. Whether there were any."""
        self.is_over = self.is_over or for_good
        for scope in self._calls:
            scope.cancel()
        return bool(self._calls)

    async def through(
        self, ask: Callable[[], Awaitable[web.StreamResponse]], max_hold: float
    ) -> web.StreamResponse:
        """Asks once it may, and only as long as it may. `max_hold` is seconds."""
        self.began = self.began or datetime.now(UTC)
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                await self._may_go(max_hold)
                if not self.is_over:
                    return await ask() if not self.waited_out else _held_too_long()
            finally:
                self._calls.discard(scope)
                self.on_change()
        self.was_cut = True
        return OwnAnswer(_CUT_STATUS, "the run was ended")

    async def _may_go(self, max_hold: float) -> None:
        self.waited_out = False
        if self._opened is None or self.is_over:
            return
        self.waiting += 1
        self.on_change()
        try:
            with anyio.move_on_after(max_hold) as limit:
                await self._opened.wait()
            self.waited_out = limit.cancelled_caught
        finally:
            self.waiting -= 1


class Turns:
    """All calls of the model. `max_tokens`: of one run, both ways together; 0: no limit of ours. `max_hold`:
    seconds that a call is held, before it is answered 503."""

    def __init__(self, events: Ring, max_tokens: int = 0, max_hold: float = _MAX_HOLD_SECONDS) -> None:
        self._events = events
        self._max_tokens = max_tokens
        self._max_hold = max_hold
        self._gates: dict[str, Gate] = {}
        self.own = Gate()
        """Of what the agent does by itself."""

    def admit(self, gate: Gate) -> str:
        """From now on calls with the word that is returned pass through this gate."""
        marker = f"input-{secrets.token_hex(16)}"
        self._gates[marker] = gate
        return marker

    def forget(self, gate: Gate) -> None:
        """No call of it will come."""
        self._gates = {marker: each for marker, each in self._gates.items() if each is not gate}
        gate.last = None

    async def call(self, body: bytes, ask: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        """One call of the model; what it came to is known before the agent knows."""
        gate = self._gate_of(body)
        response = await gate.through(ask, self._max_hold)
        if not isinstance(response, OwnAnswer):
            kept = response.body if isinstance(response, web.Response) else None
            retry_after = response.headers.get("Retry-After", "")
            self._count(gate, said(response.status, kept if isinstance(kept, bytes) else None, retry_after))
        elif response.failure:
            self._count(gate, unanswered(response.failure, str(response.text)))
        return response

    def _gate_of(self, body: bytes) -> Gate:
        """The run's own text comes before whatever others can have said to it, so its word is the first."""
        try:
            for message in json.loads(body)["messages"]:
                for text in _texts(message.get("content")):
                    for marker in _MARKER.findall(text):
                        if (found := self._gates.get(marker)) is not None:
                            return found
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass
        return self.own

    def _count(self, gate: Gate, now: Said) -> None:
        gate.usage += now.usage
        metrics.MODEL_UP.set(to=not now.failure)
        if now.failure:
            metrics.MODEL_ERRORS.inc(now.failure)
            self._events.tell("model.failed", gate.run_id, reason=now.failure)
        else:
            metrics.MODEL_CALLS.inc()
            metrics.STEPS.inc()
            self._events.tell("model.called", gate.run_id)
        metrics.TOKENS.inc("in", by=now.usage.input_tokens)
        metrics.TOKENS.inc("out", by=now.usage.output_tokens)
        if gate is not self.own and 0 < self._max_tokens < gate.usage.tokens and not now.failure:
            error = f"{gate.usage.tokens} tokens of {self._max_tokens}"
            now = replace(now, status=Status.EXHAUSTED_TOKENS, error=error)
        gate.last = now


def _texts(content: object) -> list[str]:
    """The content of a message, in either of its forms."""
    if isinstance(content, list):
        return [str(part.get("text", "")) for part in content if isinstance(part, dict)]
    return [content] if isinstance(content, str) else []


def _held_too_long() -> OwnAnswer:
    response = OwnAnswer(503, "the agent is paused")
    response.headers["Retry-After"] = "1"
    return response
