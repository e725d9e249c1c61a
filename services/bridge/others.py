"""What the agent does by itself: once, again and again, at a change. Its inventory says what there is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from libs.contract.run import Run, State, Trigger, Usage
from libs.contract.statuses import Status
from libs.errors import MeshError

from .foreign import Body, Foreign
from .turns import Turns
from .work import Work

_CHECK_SECONDS = 1.5
_LOOK_SECONDS = 0.1
_LAST_WORDS_SECONDS = 2.0  # of a run whose call of the model was cut
_TRIGGERS = {
    "once": Trigger.ONCE,
    "loop": Trigger.LOOP,
    "schedule": Trigger.LOOP,
    "workflow": Trigger.WORKFLOW,
}
_ENDLESS = ("loop", "schedule", "reactive")
_log = logging.getLogger(__name__)


class Others:
    """Its runs that are none of ours."""

    def __init__(self, foreign: Foreign, work: Work, turns: Turns) -> None:
        self._foreign = foreign
        self._work = work
        self._own = turns.own
        self._own.on_change = work.nudge
        self.mode = ""
        """Of the agent; empty before it is there."""

    async def inventory(self) -> Body:
        """As the agent has it now. MeshError."""
        return await self._foreign.read("inventory", _CHECK_SECONDS)

    def shown(self, inventory: Body) -> list[Run]:
        """Which of them a call belongs to, nobody can tell; if as many calls are held as there are runs, all
        of them hold."""
        nodes = self._work.others(inventory)
        holds = self._own.holds and self._own.waiting >= len(nodes)
        return [self._run(each, State.PAUSED if holds else State.WORKING) for each in nodes]

    async def look(self) -> list[Run]:
        """Those under way; none if the agent does not answer."""
        try:
            return self.shown(await self.inventory())
        except MeshError as error:
            _log.warning("cannot look at the agent's runs: %s", error)
            return []

    async def cancel(self, reason: str) -> list[Run]:
        """Cuts what the agent does by itself, where it goes on after that. In another mode it would end with
        the code of a model that is away, and be tried again."""
        others = await self.look()
        if not others or self.mode not in _ENDLESS or not self._own.cut(for_good=False):
            return others
        left = {each.id for each in others}
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            while left:
                await asyncio.sleep(_LOOK_SECONDS)
                left &= {each.id for each in await self.look()}
        return [
            each
            if each.id in left
            else replace(each, state=State.CANCELED, status=Status.CANCELLED, error=reason)
            for each in others
        ]

    def _run(self, node: Mapping[str, Any], state: State) -> Run:
        usage = node.get("usage") or {}
        spent = Usage(
            int(usage.get("tokens_in") or 0), int(usage.get("tokens_out") or 0), int(usage.get("steps") or 0)
        )
        trigger = _TRIGGERS.get(self.mode, Trigger.REACTION)
        return Run(f"agent:{node.get('handle')}", trigger, state, usage=spent)
