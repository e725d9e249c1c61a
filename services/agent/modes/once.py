"""One run, and the process ends as the run did."""

from __future__ import annotations

from dataclasses import dataclass

from libs.contract.run import Trigger
from libs.contract.statuses import Status

from ..desk import Desk
from ..order import Ended, Order
from ..steering import Engine


@dataclass(frozen=True, slots=True)
class Once:
    """Does the instruction once."""

    desk: Desk
    engine: Engine
    instruction: str
    run_id: str

    async def run(self) -> Ended:
        """The run. `drained` if a drain comes before its end, or before its beginning."""
        if not await self.desk.may_begin():
            return Ended(Status.DRAINED, error="drained before the run began")
        order = Order(self.run_id, Trigger.ONCE, self.instruction)
        return await self.desk.execute(order, lambda live: self.engine.run(order, live))
