"""What requests to an agent may hold. A check returns the value or raises InvalidError naming the field."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import timedelta

from google.protobuf.message import Message

from libs.errors import InvalidError

MAX_TEXT_BYTES = 1024 * 1024
MAX_CONTEXT_BYTES = 128
MAX_REASON_BYTES = 1024
MAX_PREFIXES = 16
MAX_PREFIX_BYTES = 128
MAX_PAGE = 500
DEFAULT_PAGE = 50
MAX_WAIT = timedelta(minutes=5)

_LONGEST_SECONDS = 315_576_000_000  # of google.protobuf.Duration: ten thousand years
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TOKEN = re.compile(r"(\d{1,9})/(.+)", re.DOTALL)


def invalid(field: str, why: str) -> InvalidError:
    """The error for one field."""
    return InvalidError(violations={field: why})


def run_id(value: str, *, may_be_empty: bool = False) -> str:
    """An id of a run."""
    if not _RUN_ID.fullmatch(value) and (value or not may_be_empty):
        allowed = "must have 1 to 128 letters, digits, dots, dashes, underscores and colons"
        raise invalid("run_id", f"{allowed}, or be empty" if may_be_empty else allowed)
    return value


def text(value: str, field: str, most: int, least: int = 0) -> str:
    """Text, bounded in bytes of UTF-8."""
    if not least <= len(value.encode()) <= most:
        raise invalid(field, f"must have {least} to {most} bytes")
    return value


def natural(value: int, field: str) -> int:
    """A number that is not negative."""
    if value < 0:
        raise invalid(field, "must not be negative")
    return value


def span(message: Message, field: str, most: timedelta | None = None) -> timedelta | None:
    """A duration from 0 up; None if it is absent."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    well_formed = 0 <= value.seconds <= _LONGEST_SECONDS and 0 <= value.nanos < 1_000_000_000
    given: timedelta | None = value.ToTimedelta() if well_formed else None
    if given is None or (most is not None and given > most):
        bound = "" if most is None else f" of at most {most.total_seconds():g}s"
        raise invalid(field, f"must be a duration{bound}, not negative")
    return given


def prefixes(values: Sequence[str], field: str = "name_prefixes") -> tuple[str, ...]:
    """Beginnings of names of events."""
    if len(values) > MAX_PREFIXES:
        raise invalid(field, f"at most {MAX_PREFIXES}")
    return tuple(text(each, f"{field}[{n}]", MAX_PREFIX_BYTES, 1) for n, each in enumerate(values))


def page_size(value: int) -> int:
    """How many a page has."""
    if not 0 <= value <= MAX_PAGE:
        raise invalid("page_size", f"must be 0 to {MAX_PAGE}")
    return value or DEFAULT_PAGE


def page_token(remaining: int, last_id: str) -> str:
    """Where the next page begins: after this run, behind which there were so many."""
    return base64.urlsafe_b64encode(f"{remaining}/{last_id}".encode()).decode()


def page_place(token: str) -> tuple[int, str]:
    """What `page_token` was made of."""
    try:
        found = _TOKEN.fullmatch(base64.b64decode(token, b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        found = None
    if found is None:
        raise invalid("page_token", "must be empty or what the last answer gave")
    return int(found[1]), found[2]
