"""A step that is a call of a tool: no model is asked, and its result is the step's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.contract.statuses import Status

from ..calls import Calls
from ..order import Ended, Live, Order
from ..tools.errors import ServerAwayError

_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls tools by `server.tool`: the server by its name here, the tool by its own name there."""

    calls: Calls

    async def perform(self, name: str, arguments: Mapping[str, Any], order: Order, live: Live) -> Ended:
        """The call, as the end of a step. `server` if a server is away; `failed` if the tool says so."""
        try:
            offered = await self.calls.toolbox.tools()
        except ServerAwayError as error:
            return Ended(Status.SERVER, error=str(error), passes=True)
        tool = next((each for each in offered if f"{each.server}.{each.own_name}" == name), None)
        if tool is None:
            return Ended(Status.FAILED, error=f"there is no tool {name}")
        result = await self.calls.make(tool, arguments, order, live)
        if result.outcome == "ok":
            return Ended(Status.COMPLETED, result.text)
        status = Status.SERVER if result.is_away else Status.FAILED
        return Ended(status, error=f"tool {name}: {result.text[:_ERROR_CHARACTERS]}", passes=result.is_away)
