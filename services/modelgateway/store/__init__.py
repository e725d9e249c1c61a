"""What is used, and by which calls: the promises of every store."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass

from libs.errors import InvalidError

from ..budgets import Hold, Key, Record, Refusal, Request, Spend, Usage


@dataclass(frozen=True, slots=True)
class Page:
    """Calls, newest first."""

    records: list[Record]
    next: str
    """Token of the next page; empty: there is none."""


class Store(abc.ABC):
    """Exact across replicas: in no window is more reserved and used than its limit allowed when it was
    reserved. What is settled is kept for sure; the reservation of a call that is under way may be lost when a
    database's server crashes. Time is the store's. Every method raises UnavailableError while it cannot
    answer."""

    @abc.abstractmethod
    async def reserve(self, request: Request) -> Hold | Refusal:
        """Sets tokens aside in all budgets, or in none and says which does not allow it. A hold that is not
        settled in its seconds expires: its tokens are free again."""

    @abc.abstractmethod
    async def settle(self, spend: Spend) -> None:
        """Books what a call came to, gives its hold back, and keeps its record. A hold that has expired is
        booked all the same, in the windows in which it began."""

    @abc.abstractmethod
    async def usage(self, namespace: str, pool: str = "") -> list[Usage]:
        """Present windows that have been drawn on, by pool, scope, name and window."""

    @abc.abstractmethod
    async def calls(
        self, namespace: str, pool: str = "", agent: str = "", *, size: int = 100, token: str = ""
    ) -> Page:
        """Records, newest first; `agent` is the name of an agent or fleet. InvalidError for a token that is
        none of ours."""

    @abc.abstractmethod
    async def tidy(self) -> int:
        """Frees holds that have expired, and says how many; forgets records and windows that are too old."""

    @abc.abstractmethod
    async def check(self) -> None:
        """UnavailableError while it cannot answer."""


def after(token: str) -> int:
    """The number that a page's token stands for. InvalidError."""
    if not token:
        return 1 << 62
    if not token.isascii() or not token.isdecimal() or len(token) > 18:
        raise InvalidError(violations={"page_token": "must be one that a page has given"})
    return int(token)


def keys_of(asked: Iterable[Request | Spend]) -> list[Key]:
    """Of all their budgets, each once."""
    return list(dict.fromkeys(budget.key for each in asked for budget in each.budgets))
