"""Caps on what is under way at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from libs.errors import ExhaustedError


class Places:
    """So many at once, and of one caller no more than its share, so that nobody fills them alone."""

    def __init__(self, at_once: int, share: int) -> None:
        self._at_once = at_once
        self._share = share
        self._inside: Counter[str] = Counter()

    @contextmanager
    def taken(self, who: str) -> Iterator[None]:
        """One place, while the block runs. ExhaustedError if there is none."""
        if self._inside.total() >= self._at_once or self._inside[who] >= self._share:
            raise ExhaustedError("too many requests at once, try again")
        self._inside[who] += 1
        try:
            yield
        finally:
            self._inside[who] -= 1
            self._inside += Counter()  # forgets who has none
