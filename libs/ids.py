"""Ids that anybody can make and that sort by when they were made."""

from __future__ import annotations

import random
import time

_last = 0


def new_id() -> str:
    """A UUIDv7 in canonical text; the ids of one process sort in the order they were made."""
    global _last
    _last = max((time.time_ns() << 12) // 1_000_000, _last + 1)  # milliseconds and twelve bits below
    value = _last >> 12 << 80 | 7 << 76 | (_last & 0xFFF) << 64 | 2 << 62 | random.getrandbits(62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
