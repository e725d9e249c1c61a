"""The client of coordination: submit work, claim it, and work on it with exactly one owner.

    async with connect(address, identity) as client:
        await Producer(client, "default/mail").submit(b"...")
        await Worker(client, ["default/mail"], slots=8).run(handler)

Users do not batch by hand: concurrent calls of one process leave in one RPC (`coalesce`), and each caller
gets its own verdict or its own error. `Client` has the verbs, `Producer` and `Worker` the habits: renew,
fence, replay, drain, trace context.
"""

from __future__ import annotations

from libs.errors import ShardRequiredError, StaleShardError
from libs.ids import new_id

from .claims import Shard
from .client import Client, connect
from .errors import (
    Fatal,
    ItemIdConflictError,
    LeaseLostError,
    QueueFullError,
    Release,
    Retry,
    SettledError,
)
from .item import Backoff, Submission, Work
from .producer import Producer
from .results import Results
from .task import Failure, Lease, Renewal, Result, Task
from .worker import Handler, Worker

__all__ = [
    "Backoff",
    "Client",
    "Failure",
    "Fatal",
    "Handler",
    "ItemIdConflictError",
    "Lease",
    "LeaseLostError",
    "Producer",
    "QueueFullError",
    "Release",
    "Renewal",
    "Result",
    "Results",
    "Retry",
    "SettledError",
    "Shard",
    "ShardRequiredError",
    "StaleShardError",
    "Submission",
    "Task",
    "Work",
    "Worker",
    "connect",
    "new_id",
]
