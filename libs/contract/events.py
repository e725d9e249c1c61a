"""What happens in an agent, in a ring that watchers read from: frozen names, facts, never content."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from .text import clean

MEANINGS = {
    "agent.started": "the process began",
    "agent.ready": "it can do its job",
    "agent.paused": "the whole agent is paused",
    "agent.resumed": "and goes on",
    "agent.lame_duck": "it became one, or ceased to be one",
    "agent.draining": "a drain began",
    "agent.stopped": "the last event of a process that ends by itself",
    "run.started": "a run began",
    "run.paused": "a run holds before its next step",
    "run.resumed": "and goes on",
    "run.ended": "a run ended, with its status",
    "model.called": "the model answered",
    "model.failed": "a call of the model failed",
    "tool.called": "a tool answered",
    "tool.failed": "a call of a tool failed; the model is told so",
    "limit.reached": "a limit ends a run",
    "step.started": "a step of a workflow began",
    "step.ended": "a step of a workflow ended",
    "server.connected": "a tool server is there",
    "server.lost": "a tool server is away",
    "resource.subscribed": "changes of a resource will be told",
    "resource.changed": "a resource changed",
    "item.claimed": "an item is this agent's",
    "item.settled": "an item was finished, failed or given back",
    "item.lost": "an item's lease ended before its run did",
}
NAMES = tuple(MEANINGS)
"""Frozen: contract 1.0. Readers take names that they do not know."""

RING_SIZE = 1024
MAX_FIELD = 256
"""Characters of a field's value."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `at` is since the process began."""

    sequence: int
    at: timedelta
    name: str
    run_id: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


class Ring:
    """The last events; whoever is slower than the ring is told how many it missed."""

    def __init__(self, size: int = RING_SIZE, clock: Callable[[], float] = time.monotonic) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._clock = clock
        self._began = clock()
        self._last = 0
        self._news: asyncio.Event | None = None
        self._closed = False

    @property
    def last(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._last

    def tell(self, name: str, run_id: str = "", **fields: object) -> Event:
        """Something happened. Field values are made short text."""
        self._last += 1
        facts = {key: clean(str(value))[:MAX_FIELD] for key, value in fields.items()}
        event = Event(self._last, timedelta(seconds=self._clock() - self._began), name, run_id, facts)
        self._events.append(event)
        self._wake()
        return event

    def close(self) -> None:
        """Nothing more will happen: watchers end when they have read the rest."""
        self._closed = True
        self._wake()

    async def watch(self, after: int = 0, prefixes: Sequence[str] = ()) -> AsyncIterator[tuple[Event, int]]:
        """Events after that number whose name begins with one of these, and how many the ring had lost
        before each. Ends when the ring is closed."""
        dropped = 0
        while True:
            for event in [each for each in self._events if each.sequence > after]:
                dropped += event.sequence - after - 1
                after = event.sequence
                if not prefixes or event.name.startswith(tuple(prefixes)):
                    yield event, dropped
                    dropped = 0
            if self._last > after:
                continue
            if self._closed:
                return
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None
