"""Whether the agent is there, which of its lives this is, and what it tells of itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import anyio

from libs.errors import MeshError, PreconditionError, UnavailableError, UnimplementedError

from .foreign import Body, Foreign, GoneError

_EVENTS = "agent://events"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_BURST_SECONDS = 0.1
_LOOK_SECONDS = 2.0  # at an agent that pushes nothing
_SAME_BIRTH_SECONDS = 1.0  # what two looks at an uptime may differ by
_log = logging.getLogger(__name__)


class Follower(Protocol):
    """Who has to know."""

    async def clear(self) -> None:
        """It is there, and is given nothing before this is done. MeshError."""

    def arrived(self, capabilities: Body) -> None:
        """The agent is there, or there anew. PreconditionError if it cannot be spoken to."""

    def gone(self) -> None:
        """Its process has ended."""

    def told(self, event: Body) -> None:
        """It has told of an event."""


class Presence:
    """Looks for the agent until it is there, and then listens: the stream's end tells of the agent's."""

    def __init__(self, foreign: Foreign, clock: Callable[[], float] = time.monotonic) -> None:
        self._foreign = foreign
        self._clock = clock
        self._follower: Follower | None = None
        self._suspected = asyncio.Event()
        self._birth: tuple[str, str, float] | None = None
        self._after = 0
        self.is_here = False
        self.life = 0
        """Grows with each process of the agent. A run belongs to one."""
        self.why_not = "the agent has not begun"
        """For people; while it is not here, or cannot be spoken to."""

    async def run(self, follower: Follower) -> None:
        """For ever."""
        self._follower = follower
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._meet(follower)
                pause = _FIRST_PAUSE
                await self._listen(follower)
            except GoneError as error:
                self._lost(follower, str(error))
            except MeshError as error:  # it may be there all the same
                _log.warning("the agent does not answer as it should: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def suspect(self) -> None:
        """Nobody listens any more, somebody has found: look at once."""
        self._suspected.set()

    def replaced(self) -> None:
        """Something shows that another process answers than the one that we met."""
        if self._follower is not None:
            self._lost(self._follower, "the agent was started again")
        self.suspect()

    async def _meet(self, follower: Follower) -> None:
        status = await self._foreign.read("status")
        birth = (
            str(status.get("run_id")),
            str(status.get("pid")),
            self._clock() - float(status.get("uptime_ms") or 0) / 1000,
        )
        if self.is_here and self._is_same(birth):
            return
        if self.is_here:
            self._lost(follower, "the agent was started again")
        capabilities = await self._foreign.read("capabilities")
        await follower.clear()
        self._birth, self._after = birth, 0
        self.life += 1
        self.is_here, self.why_not = True, ""
        try:
            follower.arrived(capabilities)
        except PreconditionError as error:
            self.why_not = str(error)
            _log.error("cannot speak to the agent: %s", error)
        else:
            _log.info("the agent is there", extra={"life": self.life})

    def _is_same(self, birth: tuple[str, str, float]) -> bool:
        last = self._birth
        return last is not None and last[:2] == birth[:2] and birth[2] - last[2] < _SAME_BIRTH_SECONDS

    def _lost(self, follower: Follower, why: str) -> None:
        if self.is_here:
            _log.warning("the agent has ended", extra={"reason": why})
            self.is_here = False
            self.why_not = "the agent has ended"
            follower.gone()

    async def _listen(self, follower: Follower) -> None:
        news = asyncio.Event()
        reader = asyncio.create_task(self._keep_reading(follower, news))
        try:
            async for _ in self._foreign.listen([_EVENTS]):
                news.set()
                if reader.done():
                    reader.result()
        except UnimplementedError:
            await self._read(follower)
            self._suspected.clear()
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._suspected.wait()
        finally:
            reader.cancel()
            await asyncio.wait({reader})

    async def _keep_reading(self, follower: Follower, news: asyncio.Event) -> None:
        """For ever; what comes in a burst is read at once."""
        while True:
            await news.wait()
            news.clear()
            await self._read(follower)
            await asyncio.sleep(_BURST_SECONDS)

    async def _read(self, follower: Follower) -> None:
        newest = self._after + 1
        while self._after < newest:
            body = await self._foreign.read(f"events?after={self._after}")
            newest = int(body.get("newest_seq") or 0)
            events = body.get("events") or ()
            for event in events:
                self._after = max(self._after, int(event.get("seq") or 0))
                follower.told(event)
            if not events:
                return


def must_be_here(presence: Presence) -> None:
    """UnavailableError, saying why, unless the agent is there."""
    if not presence.is_here:
        raise UnavailableError(presence.why_not)
