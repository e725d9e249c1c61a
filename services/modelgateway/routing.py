"""Which endpoint of a pool comes first, and whether a call may try another one. Pure.

An endpoint that failed `FAILURES` times in a row is ejected for a while, longer each time; when that is over
one call probes it. Retries are paid from one budget of the pool, so that a provider that is down is not asked
many times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAILURES = 3
_EJECTED_SECONDS = 5.0
_LONGEST_SECONDS = 60.0
_RETRIES = 10.0
_EARNED = 0.2
"""Retries that one call earns."""


@dataclass(slots=True)
class _State:
    failures: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    is_probed: bool = False


class Router:
    """Of one pool. Names are those of its endpoints; times are seconds of one clock."""

    def __init__(self, names: Sequence[str]) -> None:
        self._states = {name: _State() for name in names}
        self._retries = _RETRIES

    def update(self, names: Sequence[str]) -> None:
        """The pool has these endpoints now. What is known of those that stay is kept."""
        self._states = {name: self._states.get(name, _State()) for name in names}

    def order(self, now: float) -> list[str]:
        """Which to try, for a call that begins: those that are well in the pool's order, then, so that there
        is always one, the others by the end of their ejection."""
        self._retries = min(_RETRIES, self._retries + _EARNED)
        well, others = [], []
        for name, state in self._states.items():
            if state.failures < FAILURES:
                well.append(name)
            elif now >= state.ejected_until and not state.is_probed:
                state.is_probed = True
                well.append(name)
            else:
                others.append(name)
        others.sort(key=lambda name: self._states[name].ejected_until)
        return well + others

    def may_retry(self) -> bool:
        """Takes a retry from the budget, if there is one."""
        if self._retries < 1:
            return False
        self._retries -= 1
        return True

    def succeeded(self, name: str) -> None:
        """It answered."""
        if name in self._states:
            self._states[name] = _State()

    def failed(self, name: str, now: float, retry_after: float = 0.0) -> None:
        """It did not. `retry_after`: it said for how many seconds it does not want to be asked."""
        if (state := self._states.get(name)) is None:
            return
        state.failures = max(state.failures + 1, FAILURES if retry_after else 0)
        state.is_probed = False
        if state.failures >= FAILURES:
            pause = retry_after or _EJECTED_SECONDS * 2.0 ** min(state.ejections, 8)
            state.ejected_until = now + min(_LONGEST_SECONDS, pause)
            state.ejections += 1

    def unused(self, names: Sequence[str]) -> None:
        """A call ended without having tried these."""
        for name in names:
            if (state := self._states.get(name)) is not None:
                state.is_probed = False

    def ejected(self, now: float) -> list[str]:
        """Who is out."""
        return [name for name, state in self._states.items() if now < state.ejected_until]
