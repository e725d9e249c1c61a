"""The verbs through the client library: each call is one item, and the library makes the batches.

Latencies here are those of calls, waiting for the batch included; how many RPCs they became, the server says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from libs.errors import MeshError
from libs.work import Client, Task, Work

from .ledger import payload_of
from .loops import Held, Window
from .tally import Step, Tally
from .timed import Timed

_CLAIM_WAIT = timedelta(seconds=5)


class LibraryVerbs:
    """One logical client; all of a process share one library client, as in a program of many tasks."""

    def __init__(self, step: Step, client: Client, tally: Tally, window: Window) -> None:
        self._step = step
        self._client = client
        self._ledger = tally.ledger
        self._violations = tally.violations
        self._timed = Timed(step, tally, window)
        self._lease = timedelta(seconds=step.lease)
        self._tasks: dict[str, Task] = {}

    async def submit(self, item_ids: Sequence[str]) -> int:
        accepted = 0
        for item_id in item_ids:
            work = Work(payload_of(item_id, self._step.payload), id=item_id)
            try:
                submission = await self._timed.call("submit", self._client.submit, self._step.queue, work)
            except MeshError as error:
                self._violations.note(f"submit: {error.reason}", f"{item_id} {error}")
                continue
            if submission.duplicate or submission.id != item_id:
                self._violations.note("submit: duplicate", item_id)
                continue
            self._ledger.note_accepted([item_id])
            accepted += 1
        return accepted

    async def claim(self, most: int) -> list[Held]:
        try:
            tasks = await self._timed.call(
                "claim",
                self._client.claim,
                [self._step.queue],
                max_items=most,
                wait=_CLAIM_WAIT,
                lease=self._lease,
            )
        except MeshError as error:
            self._violations.note(f"claim: {error.reason}", str(error))
            return []
        self._tasks = {task.id: task for task in tasks}
        return [Held(task.id, task.token) for task in tasks if self._is_ours(task)]

    async def ack(self, held: Sequence[Held], claim_next: int) -> list[Held]:
        """The library has its own ways to claim the next; claim_next is not used."""
        for item in held:
            task = self._tasks.pop(item.item_id)
            try:
                await self._timed.call("ack", self._client.ack, task, task.id.encode())
            except MeshError as error:
                self._violations.note(f"ack: {error.reason}", f"{item.item_id} {error}")
                continue
            self._ledger.note_acked([item.item_id])
            self._timed.settled(1)
        return []

    def _is_ours(self, task: Task) -> bool:
        if task.attempt != 1:
            self._violations.note(f"claim: attempt {task.attempt}", task.id)
        if self._ledger.is_ours(task.id, task.payload):
            return True
        self._violations.note("claim: an item that is not ours, or changed", task.id)
        return False
