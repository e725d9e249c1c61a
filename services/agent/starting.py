"""Waiting, at the start, for what the agent cannot do without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from libs.contract.statuses import Status
from libs.errors import MeshError, UnavailableError

from .model import Model
from .order import Ended
from .tools.toolbox import Toolbox

_CHECK_SECONDS = 5.0
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # between two looks at a server that is not there yet
_log = logging.getLogger("agent")


@dataclass(frozen=True, slots=True)
class Needs:
    """The servers of an agent: those that it has not got are None."""

    patience: timedelta
    model: Model | None = None
    toolbox: Toolbox | None = None
    coordination: Callable[[], Awaitable[None]] | None = None

    async def missing(self) -> Ended | None:
        """What stays away, as the end of a run: a model is told first. None: all is there."""
        async with asyncio.TaskGroup() as tasks:
            model = tasks.create_task(self._there("model", self._look_at_model))
            coordination = tasks.create_task(self._there("coordination", self.coordination))
            tools = tasks.create_task(self._reach())
        if reason := model.result():
            return Ended(Status.MODEL, error=reason)
        reason = coordination.result() or tools.result()
        return Ended(Status.SERVER, error=reason) if reason else None

    async def _look_at_model(self) -> None:
        if self.model and (failure := await self.model.check()):
            raise UnavailableError(failure.error)

    async def _reach(self) -> str:
        try:
            if self.toolbox:
                await self.toolbox.reach(self.patience)
        except MeshError as error:
            return f"a tool server is away: {error}"
        return ""

    async def _there(self, server: str, look: Callable[[], Awaitable[None]] | None) -> str:
        """Why it is not there when the patience is at its end; "" as soon as it is."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience.total_seconds()
        pauses = iter(_PAUSES)
        while look:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await look()
                return ""
            except (MeshError, OSError) as error:  # TimeoutError is an OSError
                pause = next(pauses, _PAUSES[-1])
                over = loop.time() + pause > until
                reason = str(error) or "no answer in time"
                level = logging.ERROR if over else logging.WARNING
                _log.log(level, f"{server} is away", extra={"reason": reason})
                if over:
                    return f"{server} is away: {reason}"
                await asyncio.sleep(pause)
        return ""
