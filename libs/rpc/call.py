"""What a handler sees of a call, on either front. Handlers raise; they never set statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from libs.identity import Principal


@dataclass(slots=True, eq=False)
class Call:
    """One call in flight: who makes it, how long it may take, and its metadata (lower-case keys)."""

    method: str
    caller: Principal
    deadline: float  # on the event loop's clock; infinity where the client set none
    metadata: Mapping[str, str | bytes]
    _undelivered: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def of(cls, context: object) -> Call:
        """The call behind a servicer's `context`; both fronts pass one."""
        if not isinstance(context, cls):
            raise TypeError(f"handlers are called through the doorway, not with {type(context)}")
        return context

    def time_remaining(self) -> float:
        """Seconds until the deadline; infinity where there is none."""
        return self.deadline - asyncio.get_running_loop().time()

    def on_undelivered(self, undo: Callable[[], None]) -> None:
        """Call `undo` if the call ends without its answer having been handed to the transport."""
        self._undelivered.append(undo)

    def undeliverable(self) -> None:
        """For the doorway: the answer could not be handed over."""
        for undo in self._undelivered:
            undo()
        self._undelivered.clear()
