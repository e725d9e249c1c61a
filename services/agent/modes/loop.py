"""A run, a rest, and again, until a drain."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.exits import Exit
from libs.ids import new_id

from ..desk import Desk
from ..order import Order
from ..steering import Engine

_log = logging.getLogger("agent")


@dataclass(frozen=True, slots=True)
class Loop:
    """Does the instruction again and again. A run that fails is told, and the next comes in its time."""

    desk: Desk
    engine: Engine
    instruction: str
    interval: timedelta
    """From the end of a run to the start of the next."""

    async def run(self) -> Exit:
        """Until a drain."""
        while await self.desk.may_begin():
            await self._once()
            await self.desk.drains_within(self.interval)
        return Exit.OK

    async def _once(self) -> None:
        order = Order(new_id(), Trigger.LOOP, self.instruction)
        ended = await self.desk.execute(order, lambda live: self.engine.run(order, live))
        if ended.status is not Status.COMPLETED:
            _log.warning(
                "the run failed", extra={"run": order.id, "status": ended.status, "reason": ended.error}
            )
