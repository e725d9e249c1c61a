"""What a producer gives: work, its id, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from opentelemetry.context import get_current

from agentctl.coordination.v1 import work_pb2
from libs import telemetry
from libs.errors import InvalidError
from libs.ids import new_id

MAX_ENTRIES = 1000
MAX_REQUEST = 3 << 20
MAX_PAYLOAD = 1 << 20
MAX_CONTENT_TYPE = 128
MAX_KEY = 256
MAX_LABELS = 32
_YEAR = timedelta(days=366)
_DAY = timedelta(days=1)
_MAX_TRACE = 512  # a longer tracestate is dropped: work matters more


def duration(length: timedelta) -> Duration:
    """A Duration of the wire."""
    return Duration(seconds=length.days * 86_400 + length.seconds, nanos=length.microseconds * 1000)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts; what is absent is the queue's."""

    initial: timedelta | None = None
    maximum: timedelta | None = None
    multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """One item to be done. Submit the same object again as often as you like: it is added once.

    The fields are those of WorkItem in the proto; zero and empty mean what they mean there.
    """

    payload: bytes = b""
    content_type: str = ""
    dedupe_key: str = ""
    priority: int = 0
    delay: timedelta | None = None
    expires_in: timedelta | None = None
    max_attempts: int = 0
    backoff: Backoff | None = None
    group: str = ""
    ordering_key: str = ""
    shard_key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    id: str = field(default_factory=new_id)

    def to_pb(self) -> work_pb2.WorkItem:
        """For the wire, with the trace context of this moment. InvalidError names what the server would
        refuse, so that it never gets into a request with the work of others.
        """
        if wrong := self._violations():
            raise InvalidError(violations=wrong)
        item = work_pb2.WorkItem(id=self.id, payload=self.payload, priority=self.priority)
        if self.content_type:
            item.content_type = self.content_type
        if self.dedupe_key:
            item.dedupe_key = self.dedupe_key
        if self.delay:
            item.delay.CopyFrom(duration(self.delay))
        if self.expires_in:
            item.expires_in.CopyFrom(duration(self.expires_in))
        if self.max_attempts:
            item.max_attempts = self.max_attempts
        if self.backoff:
            item.backoff.multiplier = self.backoff.multiplier
            if self.backoff.initial is not None:
                item.backoff.initial.CopyFrom(duration(self.backoff.initial))
            if self.backoff.maximum is not None:
                item.backoff.maximum.CopyFrom(duration(self.backoff.maximum))
        if self.group:
            item.group = self.group
        if self.ordering_key:
            item.ordering_key = self.ordering_key
        if self.shard_key:
            item.shard_key = self.shard_key
        if self.labels:
            item.labels.update(self.labels)
        if get_current():
            carrier: dict[str, str] = {}
            telemetry.inject(carrier)
            item.trace_context.update({k: v for k, v in carrier.items() if len(v) <= _MAX_TRACE})
        return item

    def _violations(self) -> dict[str, str]:
        wrong: dict[str, str] = {}
        if len(self.payload) > MAX_PAYLOAD:
            wrong["payload"] = f"at most {MAX_PAYLOAD} bytes, not {len(self.payload)}"
        if not 0 <= self.priority <= 9:
            wrong["priority"] = "0..9"
        if not 0 <= self.max_attempts <= 1000:
            wrong["max_attempts"] = "1..1000, or 0 for the queue's"
        check_text(wrong, "id", self.id, 36)
        check_text(wrong, "content_type", self.content_type, MAX_CONTENT_TYPE)
        check_text(wrong, "dedupe_key", self.dedupe_key, MAX_KEY)
        check_text(wrong, "group", self.group, MAX_KEY)
        check_text(wrong, "ordering_key", self.ordering_key, MAX_KEY)
        check_text(wrong, "shard_key", self.shard_key, MAX_KEY)
        check_length(wrong, "delay", self.delay, _YEAR)
        check_length(wrong, "expires_in", self.expires_in, _YEAR)
        if self.backoff:
            check_length(wrong, "backoff.initial", self.backoff.initial, _DAY)
            check_length(wrong, "backoff.maximum", self.backoff.maximum, _DAY)
            if self.backoff.multiplier and not 1 <= self.backoff.multiplier <= 10:
                wrong["backoff.multiplier"] = "1..10, or 0 for the queue's"
        if self.labels:
            if len(self.labels) > MAX_LABELS:
                wrong["labels"] = f"at most {MAX_LABELS}"
            for key, value in self.labels.items():
                check_text(wrong, f"labels[{key!r}]", key, 63)
                check_text(wrong, f"labels[{key!r}]", value, 255)
                if not key or "=" in key:
                    wrong[f"labels[{key!r}]"] = "keys are 1..63 bytes without '='"
        return wrong


def check_text(wrong: dict[str, str], name: str, text: str, most: int) -> None:
    """Add to `wrong` if the text is too long, has a NUL, or is no UTF-8 (a lone surrogate)."""
    if not text:
        return
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            wrong[name] = "valid Unicode"
            return
    if size > most:
        wrong[name] = f"at most {most} bytes, not {size}"
    elif "\0" in text:
        wrong[name] = "no NUL"


def check_length(wrong: dict[str, str], name: str, length: timedelta | None, most: timedelta) -> None:
    """Add to `wrong` if the time is negative or too long."""
    if length is not None and not timedelta(0) <= length <= most:
        wrong[name] = f"0s to {most.days}d" if most.days else f"0s to {most.seconds}s"


@dataclass(frozen=True, slots=True)
class Submission:
    """It is in the queue. `duplicate`: another item holds the dedupe key, and `id` and `state` are that
    one's; otherwise `state` is WORK_STATE_UNSPECIFIED.
    """

    id: str
    duplicate: bool
    state: work_pb2.WorkState.ValueType
