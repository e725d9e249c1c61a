"""A case: one demand of the contract, what tries it, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from .world import World

Trial = Callable[[Any], Awaitable[None]]
"""Gets what its group starts. Returns if the demand is met; BrokenError, SkippedError."""

_LOOK_SECONDS = 0.03


class Verdict(StrEnum):
    """What came of a case."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


class BrokenError(Exception):
    """The agent does not do what the contract demands; the message says what it did."""


class SkippedError(Exception):
    """The case cannot be tried; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One demand. `seconds` bounds its trial, not the start of its group."""

    id: str
    demand: str
    trial: Trial
    seconds: float
    severity: str = "must"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, and how long that took."""

    case: Case
    verdict: Verdict
    message: str
    seconds: float


@dataclass(frozen=True)
class Group:
    """Cases that share what `start` gives: mostly one running agent."""

    name: str
    start: Callable[[World], AbstractAsyncContextManager[Any]]
    cases: list[Case] = field(default_factory=list)
    start_seconds: float = 60.0

    def case(self, id: str, demand: str, *, seconds: float = 15.0) -> Callable[[Trial], Trial]:
        """Adds a case: a decorator of what tries it."""

        def add(trial: Trial) -> Trial:
            self.cases.append(Case(id, demand, trial, seconds))
            return trial

        return add


def demand(holds: object, otherwise: str) -> None:
    """BrokenError with these words unless it holds."""
    if not holds:
        raise BrokenError(otherwise)


async def becomes(
    what: Callable[[], Awaitable[object] | object],
    otherwise: Callable[[], str] | str,
    *,
    seconds: float = 5.0,
) -> Any:
    """What the question answers once that is true of it; BrokenError if it is not in time."""
    until = time.monotonic() + seconds
    while True:
        found = what()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        if time.monotonic() > until:
            said = otherwise if isinstance(otherwise, str) else otherwise()
            raise BrokenError(f"{said} (within {seconds:g}s)")
        await anyio.sleep(_LOOK_SECONDS)


async def never(what: Callable[[], object], otherwise: str, *, seconds: float) -> None:
    """BrokenError if the question is answered with yes while we look on."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        demand(not what(), otherwise)
        await anyio.sleep(_LOOK_SECONDS)
