"""Durations as people write them (`30s`, `1h30m`) and as tables show them."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LONGEST = timedelta(days=36_500)
_SHORTEST = timedelta(milliseconds=1)


def duration(text: str) -> timedelta:
    """`500ms`, `30s`, `5m`, `1h30m`, `7d`, or `0`. ValueError says what is allowed."""
    if text == "0":
        return timedelta()
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 5m, 1h30m or 7d")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"{text!r} is longer than a hundred years")
    return of_seconds(seconds)


def of_seconds(seconds: float) -> timedelta:
    """What is more than nothing is at least a millisecond: zero often means never, or no bound."""
    return max(timedelta(seconds=seconds), _SHORTEST) if seconds > 0 else timedelta(seconds=seconds)


def option(text: str) -> timedelta:
    """`duration` for the command line: what is wrong is a usage error."""
    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def span(seconds: float) -> str:
    """At most two units, for people: `0.4s`, `12s`, `1m35s`, `2h5m`, `3d4h`."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for large, small in (("d", "h"), ("h", "m"), ("m", "s")):
        if whole >= _SECONDS[large]:
            count, rest = divmod(whole, int(_SECONDS[large]))
            fine = rest // int(_SECONDS[small])
            return f"{count}{large}{fine}{small}" if fine else f"{count}{large}"
    return f"{whole}s"
