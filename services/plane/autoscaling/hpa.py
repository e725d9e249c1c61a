"""How many replicas there are to be. Pure: the caller has the clock, in seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What a ScaledObject says about it."""

    minimum: int
    maximum: int
    cooldown: float
    """Seconds without activity until there are none, if the minimum is 0."""
    window: float
    """Seconds for which a lower number must hold until it counts."""
    fallback: int | None = None
    """The least replicas while the demand is not known; None: as many as there are."""
    threshold: int = 3
    """Failures in a row after which the fallback counts."""

    @property
    def floor(self) -> int:
        """The least that there are while there is anything to do."""
        return min(max(1, self.minimum), self.maximum)


def replicas_for(metrics: Iterable[tuple[float, float]]) -> int:
    """For (value, how much of it one replica is for) of each metric: the largest number counts."""
    return max((math.ceil(max(0.0, value) / target) for value, target in metrics), default=0)


class Decisions:
    """The decisions about one Deployment, of which each stands on those before it."""

    def __init__(self, policy: Policy, now: float, replicas: int) -> None:
        self._policy = policy
        self._active_at = now
        self._failures = 0
        self._wanted = deque([(now, replicas)])  # within the window; each less than the one before it

    @property
    def falls_back(self) -> bool:
        """Whether the fallback counts now."""
        return self._policy.fallback is not None and self._failures >= self._policy.threshold

    def known(self, now: float, replicas: int, is_active: bool, needed: int) -> int:
        """Replicas from now on: there are so many, there is something to do or not, and it needs so many."""
        policy, self._failures = self._policy, 0
        if is_active:
            self._active_at = now
        is_idle = replicas == 0 or now - self._active_at >= policy.cooldown
        if not is_active and policy.minimum == 0 and is_idle:
            return 0
        return self._steadied(now, replicas, needed)

    def unknown(self, now: float, replicas: int) -> int:
        """Replicas from now on, since the demand cannot be known. That time counts for no scaling down."""
        self._failures += 1
        self._active_at = now
        if self.falls_back:
            assert self._policy.fallback is not None
            return self._steadied(now, replicas, max(replicas, self._policy.fallback))
        self._want(now, replicas)
        return replicas

    def _steadied(self, now: float, replicas: int, needed: int) -> int:
        """Up at once, down to the most that was wanted within the window."""
        policy = self._policy
        wanted = min(max(needed, policy.floor), policy.maximum)
        self._want(now, wanted)
        return max(wanted, min(replicas, self._wanted[0][1], policy.maximum))

    def _want(self, now: float, replicas: int) -> None:
        wanted = self._wanted
        while wanted and wanted[0][0] <= now - self._policy.window:
            wanted.popleft()
        while wanted and wanted[-1][1] <= replicas:
            wanted.pop()
        wanted.append((now, replicas))
