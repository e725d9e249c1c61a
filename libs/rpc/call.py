"""What a handler sees of a call, on either front. Handlers raise; they never set statuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from libs.identity import Principal


class Call:
    """One call in flight: who makes it, how long it may take, and its metadata (lower-case keys)."""

    __slots__ = ("_undelivered", "caller", "deadline", "metadata")

    def __init__(
        self,
        metadata: Mapping[str, str | bytes],
        caller: Principal | None = None,
        deadline: float = float("inf"),
    ) -> None:
        self.metadata = metadata
        if caller is not None:  # the doorway names it before the handler can ask
            self.caller = caller
        self.deadline = deadline  # on `time.monotonic()`; infinity where the client set none
        self._undelivered: list[Callable[[], None]] | None = None

    @classmethod
    def of(cls, context: object) -> Call:
        """The call behind a servicer's `context`; both fronts pass one."""
        if not isinstance(context, Call):
            raise TypeError(f"handlers are called through the doorway, not with {type(context)}")
        return context

    def origin(self) -> str:
        """The caller's network address."""
        return "unknown"

    def time_remaining(self) -> float:
        """Seconds until the deadline; infinity where there is none."""
        return self.deadline - time.monotonic()

    def on_undelivered(self, undo: Callable[[], None]) -> None:
        """Call `undo` if the call ends without its answer having been handed to the transport."""
        if self._undelivered is None:
            self._undelivered = []
        self._undelivered.append(undo)

    def undeliverable(self) -> None:
        """For the doorway: the answer could not be handed over."""
        undos, self._undelivered = self._undelivered or (), None
        for undo in undos:
            undo()
