"""A line of the table of bars: what was measured, what it is held to, and whether it keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..bars import Judgement


@dataclass(frozen=True)
class Line:
    """One measured thing. Without limits it is only printed. `values` is for programs."""

    name: str
    store: str
    figure: str
    limits: tuple[Judgement, ...] = ()
    goal: Judgement | None = None
    """To be approached; it decides nothing."""
    cost: str = ""
    control: str = ""
    """The same without what is tested, or what the machine could do at most, at that moment."""
    notes: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verified(self) -> bool:
        """Whether the work that was measured was done right."""
        return not self.violations

    @property
    def met(self) -> bool | None:
        """Whether all limits are kept; None when there are none. An unverified figure keeps nothing."""
        return self.verified and all(limit.met for limit in self.limits) if self.limits else None


def at_most(text: str, value: float, most: float) -> Judgement:
    """A limit that the value must not exceed."""
    return Judgement(f"≤ {text}", value <= most)


def loss_text(loss: float) -> str:
    """For people: a negative loss is none."""
    return f"{loss:.1%} loss" if loss >= 0 else f"no loss ({-loss:.1%} faster)"


def loss_limit(loss: float, most: float = 0.2) -> Judgement:
    """How much of the throughput a state may cost."""
    return at_most(f"{most:.0%} loss", loss, most)
