"""Budgets of tokens: which apply to a call, what a window is, who is refused. Pure; used by every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum

from libs.errors import ExhaustedError


class Scope(IntEnum):
    """Whom a budget counts for; numbers are those of the proto."""

    POOL = 1
    FLEET = 2
    AGENT = 3


@dataclass(frozen=True, slots=True)
class Key:
    """What a budget's usage is kept under, apart from its window's start."""

    namespace: str
    pool: str
    scope: Scope
    name: str
    """Of the fleet or agent; empty for the pool."""
    window: int
    """Seconds; 0: for ever."""

    def start(self, now: float) -> int:
        """When its present window began (unix seconds)."""
        return int(now // self.window) * self.window if self.window else 0

    def end(self, now: float) -> int | None:
        """When the next one begins; None: never."""
        return self.start(now) + self.window if self.window else None


@dataclass(frozen=True, slots=True)
class Budget:
    """So many tokens in each window."""

    key: Key
    limit: int


@dataclass(slots=True)
class Level:
    """How far a budget is used up in its present window."""

    used: int = 0
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Tokens that are set aside for one call, in the windows in which it began."""

    id: str
    tokens: int
    buckets: tuple[int, ...]
    """The store's own names of these windows."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which budget a call does not fit into."""

    budget: Budget
    used: int
    reserved: int
    now: float


@dataclass(frozen=True, slots=True)
class Request:
    """Set these tokens aside in all of these budgets, or in none."""

    id: str
    budgets: tuple[Budget, ...]
    tokens: int
    seconds: float
    """After which the reservation expires."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A budget's window as it is now."""

    key: Key
    used: int
    reserved: int
    resets_at: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """One call, when it was over."""

    namespace: str
    pool: str
    agent: str
    """Name of the agent; empty if the caller was none."""
    fleet: str
    caller: str
    model: str
    operation: int
    endpoint: str
    status: int
    error: str
    started_at: float
    seconds: float
    first_byte: float | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    estimated: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class Spend:
    """What a call came to. Without a hold its budgets are charged in their present windows."""

    id: str
    """UUID: one that is told twice is booked once."""
    record: Record | None
    tokens: int
    hold: Hold | None = None
    budgets: tuple[Budget, ...] = field(default=())


def refusal(request: Request, levels: Mapping[Key, Level], now: float) -> Refusal | None:
    """The first budget that it does not fit into; None if it fits."""
    for budget in request.budgets:
        level = levels[budget.key]
        if level.used + level.reserved + request.tokens > budget.limit:
            return Refusal(budget, level.used, level.reserved, now)
    return None


def reserve(requests: Sequence[Request], levels: Mapping[Key, Level], now: float) -> list[Refusal | None]:
    """One after the other; levels rise by what fits."""
    verdicts = []
    for request in requests:
        verdict = refusal(request, levels, now)
        if verdict is None:
            for budget in request.budgets:
                levels[budget.key].reserved += request.tokens
        verdicts.append(verdict)
    return verdicts


class BudgetError(ExhaustedError):
    """A budget does not allow the call."""

    reason = "BUDGET"

    def __init__(self, message: str, facts: Mapping[str, str | int | None] | None = None) -> None:
        super().__init__(message)
        self.budget = dict(facts or {})
        self.facts = {name: str(value) for name, value in self.budget.items() if value is not None}
        self.retry_after: int | None = None

    @classmethod
    def of(cls, refusal: Refusal, tokens: int) -> BudgetError:
        """What the caller is told."""
        key, limit = refusal.budget.key, refusal.budget.limit
        ends = key.end(refusal.now)
        resets = None if ends is None else datetime.fromtimestamp(ends, UTC).strftime("%FT%TZ")
        whose = key.scope.name.lower()
        window = f"{key.window}s" if key.window else "for ever"
        error = cls(
            f"the budget of {whose} {key.name or key.pool} in pool {key.pool} does not allow this call:"
            f" limit {limit} tokens ({window}), used {refusal.used}, reserved {refusal.reserved},"
            f" this call up to {tokens}" + (f"; it resets at {resets}" if resets else ""),
            {
                "scope": whose,
                "name": key.name or key.pool,
                "pool": key.pool,
                "window": key.window or None,
                "limit": limit,
                "used": refusal.used,
                "reserved": refusal.reserved,
                "requested": tokens,
                "resets_at": resets,
            },
        )
        error.retry_after = None if ends is None else max(1, int(ends - refusal.now) + 1)
        return error
