"""What a worker gets: leases, and tasks, which are leases with the item in them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from agentctl.coordination.v1 import work_pb2

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that does not stop while the machine sleeps, where there is one: leases do not."""
    return time.clock_gettime(_CLOCK)


def seconds(duration: Duration) -> float:
    """A Duration of the wire."""
    return duration.seconds + duration.nanos * 1e-9


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on an item. `deadline` is on `clock()`; 0: not known, and nothing is replayed."""

    id: str
    token: int
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """How an earlier attempt ended."""

    attempt: int
    error: str
    holder: str


@dataclass(slots=True, eq=False)
class Task(Lease):
    """An item and the lease on it. `deadline` counts from before the request could be granted, so it is never
    later than the server's. `lost`: the lease is gone, or so close to its end that it may not be used.
    `token` grows with each grant of the item: hand it along with what you write elsewhere.
    """

    queue: str = ""
    payload: bytes = b""
    content_type: str = ""
    attempt: int = 1
    max_attempts: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    ordering_key: str = ""
    failures: tuple[Failure, ...] = ()
    trace: Mapping[str, str] = field(default_factory=dict)
    lease: float = 0.0  # seconds that were left when it was granted
    lost: bool = False

    @classmethod
    def of(cls, grant: work_pb2.Grant, sent: float) -> Task:
        """From the wire; `sent` is the time on `clock()` before the request left, plus what it waited."""
        lease = seconds(grant.expires_in)
        return cls(
            grant.item_id,
            grant.token,
            sent + lease,
            grant.queue,
            grant.payload,
            grant.content_type,
            grant.attempt,
            grant.max_attempts,
            dict(grant.labels) if grant.labels else {},  # the test is cheaper than an empty copy
            grant.group,
            grant.ordering_key,
            tuple(Failure(f.attempt, f.error, f.holder) for f in grant.failures) if grant.failures else (),
            dict(grant.trace_context) if grant.trace_context else {},
            lease,
        )


@dataclass(frozen=True, slots=True)
class Renewal:
    """The lease lives on. `cancel_requested`: somebody wants the item stopped; release it."""

    expires_in: timedelta
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What a handler returns when it wants to say what it is."""

    payload: bytes = b""
    content_type: str = ""
