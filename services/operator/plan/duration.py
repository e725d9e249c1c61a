"""Lengths of time as manifests have them."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class DurationError(ValueError):
    """It is not a length of time."""


def seconds(text: str) -> int:
    """Seconds that 30s, 5m or 1h30m say. DurationError for anything else, and for nothing at all."""
    if not text or not (match := _LENGTH.fullmatch(text)):
        raise DurationError(f"{text!r} is not a length of time such as 30s, 5m or 1h30m")
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + rest


def shown(text: str) -> str:
    """The same in one unit, as agents read it; nothing stays nothing."""
    return f"{seconds(text)}s" if text else ""
