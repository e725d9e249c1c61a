"""A run under way: what its engine sees of it, and what the verbs do to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from libs.contract.run import Run, State, Usage

from .order import Ended, Order

if TYPE_CHECKING:
    from .desk import Desk


@dataclass(eq=False, slots=True)
class Underway:
    """A run, from its beginning on: what the engine sees of it (`order.Live`), and what others do to it."""

    order: Order
    desk: Desk
    began: float
    digest: bytes = b""
    """Of what a message asks: the text itself is not kept when the run has ended."""
    state: State = State.WORKING
    ended: Ended | None = None
    took: float = 0.0
    usage: Usage = field(default_factory=Usage)
    activity: str = ""
    subject: str = ""
    is_held: bool = False
    parts: int = 1
    """What it does side by side: it is paused when each of these holds."""
    holding: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    interruption: Ended | None = None

    async def step(self, activity: str) -> None:
        """As `Live` promises. During a drain nothing holds."""
        if activity != self.activity:
            self.activity = activity
            self.desk.wake()
        if not self._may_go():
            self.holding += 1
            try:
                while not self._may_go():
                    self._look()
                    await self.desk.news()
            finally:
                self.holding -= 1
            self._look()

    @contextmanager
    def part(self) -> Iterator[None]:
        """One more that it does side by side."""
        self.parts += 1
        try:
            yield
        finally:
            self.parts -= 1
        self._look()

    def spend(self, usage: Usage) -> None:
        """Adds to what it has used."""
        self.usage += usage

    def tell(self, name: str, **fields: object) -> None:
        """An event of this run."""
        self.desk.events.tell(name, self.order.id, **fields)

    def interrupt(self, ended: Ended) -> None:
        """End it at once, so; the first to do it is the one who did."""
        if self.ended is None and self.interruption is None:
            self.interruption = ended
            self.scope.cancel()

    def snapshot(self) -> Run:
        """As it is now."""
        ended = self.ended
        now = self.desk.clock()
        return Run(
            id=self.order.id,
            trigger=self.order.trigger,
            state=self.state,
            status=ended.status if ended else None,
            error=ended.error if ended else "",
            result=ended.text if ended else "",
            context_id=self.order.context_id,
            usage=self.usage,
            age=timedelta(seconds=now - self.began),
            took=timedelta(seconds=self.took) if ended else None,
            activity="" if ended else self.activity,
            subject=self.subject,
        )

    def _may_go(self) -> bool:
        return not (self.is_held or self.desk.paused)

    def _look(self) -> None:
        """Says whether it is paused, if that has changed."""
        state = State.PAUSED if 0 < self.holding >= self.parts else State.WORKING
        if state is not self.state:
            self.state = state
            self.tell("run.paused" if state is State.PAUSED else "run.resumed", activity=self.activity)
            self.desk.wake()
