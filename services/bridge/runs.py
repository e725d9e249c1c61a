"""The runs that the bridge has begun in its agent: what is known of each, and who waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from libs.contract.run import Run, State, Trigger, Usage, state_of
from libs.contract.statuses import Status
from libs.errors import ExistsError, NotFoundError

from .foreign import Task
from .turns import Gate

MAX_ENDED = 256
MAX_RESULT_BYTES = 8 * 1024 * 1024  # of all ended runs together
HELD_TOO_LONG = "it was paused for longer than the agent waits for its model"
CUT_AT = 4096
"""agentd hands over so many characters of an answer. One of just that length has been cut."""

_FAILURES = {each.value: each for each in Status if state_of(each) is State.FAILED}


@dataclass(slots=True, eq=False)
class Entry:
    """One run. `task_id` says which of agentd's it is; it is empty until agentd has begun it."""

    id: str
    trigger: Trigger
    context_id: str
    digest: bytes
    began: float
    task_id: str = ""
    gate: Gate = field(default_factory=Gate)
    """What its calls of the model pass through."""
    held: bool = False
    """It holds before its next step, as has been told."""
    cancel_reason: str | None = None
    """Set once somebody wants it to end."""
    is_ending: bool = False
    """The agent knows that, and will see to it at the run's next turn."""
    may_go_elsewhere: bool = False
    """It ended by no fault of its own or its model's, so that another agent may do it."""
    may_pass: bool = False
    """Its model may do better later, though its status is for good."""
    retry_after: timedelta | None = None
    """How much later, as the model's endpoint says."""
    status: Status | None = None
    error: str = ""
    result: str = ""
    ended: float | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def must_end(self) -> bool:
        """Somebody wants it to end, or nobody waits for it any more."""
        return self.cancel_reason is not None or self.status is not None

    @property
    def usage(self) -> Usage:
        """As its model has counted."""
        return self.gate.usage


class Runs:
    """Those under way and the last that ended. Ids are the item's or the message's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: dict[str, Entry] = {}
        self._clock = clock
        self.ended_by_status: Counter[str] = Counter()
        self.usage_of_ended = Usage()

    def __iter__(self) -> Iterator[Entry]:
        """Oldest first."""
        return iter(list(self._entries.values()))

    @property
    def active(self) -> list[Entry]:
        """Under way, oldest first."""
        return [each for each in self if each.status is None]

    def find(self, run_id: str) -> Entry:
        """NotFoundError."""
        if (found := self._entries.get(run_id)) is None:
            raise NotFoundError(f"no run {run_id}")
        return found

    def same(self, run_id: str, text: str) -> Entry | None:
        """The run of that id, if it is of the same message; None if there is none. ExistsError."""
        found = self._entries.get(run_id)
        if found is not None and found.digest != _digest(text):
            raise ExistsError(f"run {run_id} is of another message")
        return found

    def begin(self, run_id: str, trigger: Trigger, text: str, context_id: str = "") -> Entry:
        """A new one; one of that id that has ended is forgotten. ExistsError if it is under way."""
        last = self._entries.pop(run_id, None)
        if last is not None and last.status is None:
            self._entries[run_id] = last
            raise ExistsError(f"run {run_id} is under way")
        entry = Entry(run_id, trigger, context_id, _digest(text), self._clock())
        self._entries[run_id] = entry
        return entry

    def forget(self, entry: Entry) -> None:
        """It has not begun after all, and whoever waits for its end has it."""
        if self._entries.get(entry.id) is entry:
            del self._entries[entry.id]
        if entry.status is None:
            entry.status, entry.error = Status.FAILED, "the agent did not begin it"
            self.tell(entry)

    def end(self, entry: Entry, status: Status, *, error: str = "", result: str = "") -> None:
        """It has ended; the first end counts."""
        if entry.status is not None:
            return
        entry.status, entry.error, entry.result = status, error, result
        entry.ended, entry.held = self._clock(), False
        self.ended_by_status[status] += 1
        self.usage_of_ended += entry.usage
        self._make_room()
        self.tell(entry)

    def _make_room(self) -> None:
        """What is too much goes, what ended first before the rest."""
        past = sorted((each.ended, each.id) for each in self._entries.values() if each.ended is not None)
        for _, run_id in past[: max(len(past) - MAX_ENDED, 0)]:
            del self._entries[run_id]
        kept = [self._entries[run_id] for _, run_id in past[-MAX_ENDED:]]
        excess = sum(_size(each) for each in kept) - MAX_RESULT_BYTES
        for each in kept:
            if excess <= 0:
                break
            excess -= _size(each)
            each.result = ""

    def tell(self, entry: Entry) -> None:
        """Wakes whoever waits for news of it."""
        entry.news.set()
        entry.news = asyncio.Event()

    def shown(self, entry: Entry) -> Run:
        """As the contract shows it."""
        if entry.status is None:
            state = State.PAUSED if entry.held else State.WORKING
        else:
            state = state_of(entry.status)
        took = None if entry.ended is None else timedelta(seconds=entry.ended - entry.began)
        return Run(
            entry.id,
            entry.trigger,
            state,
            entry.status,
            entry.error,
            entry.result,
            entry.context_id,
            entry.usage,
            age=timedelta(seconds=self._clock() - entry.began),
            took=took,
            activity="ending" if entry.is_ending and entry.status is None else "",
        )

    async def over(self, entry: Entry) -> None:
        """Returns when it has ended."""
        while entry.status is None:
            await entry.news.wait()

    async def watch(self, entry: Entry) -> AsyncIterator[Run]:
        """Now and after each change, up to its last state."""
        while True:
            news = entry.news
            run = self.shown(entry)
            yield run
            if run.state.ended:
                return
            await news.wait()


def outcome(task: Task, entry: Entry, *, is_draining: bool) -> tuple[Status, str, str]:
    """What a task that has ended amounts to: status, error, result. The model's last words say more than the
    task, where they are the same words."""
    last = entry.gate.last
    match task.state:
        case "COMPLETED" if last and last.status and last.text.strip().startswith(task.text.strip()):
            return last.status, last.error, last.text
        case "COMPLETED" if len(task.text) == CUT_AT:
            return Status.TOO_LARGE, f"the agent cut its answer at {CUT_AT} characters", task.text
        case "COMPLETED":
            return Status.COMPLETED, "", task.text
        case "CANCELED" | "FAILED" if entry.gate.was_cut and entry.cancel_reason is not None:
            return Status.CANCELLED, entry.cancel_reason, ""
        case "REJECTED":
            return Status.REFUSED, task.reason or "the agent would not do it", ""
        case "CANCELED" if is_draining and entry.cancel_reason is None:
            return Status.DRAINED, "the agent drained", ""
        case "CANCELED":
            return Status.CANCELLED, entry.cancel_reason or task.reason or "cancelled", ""
    word = task.reason.strip()
    status = _FAILURES.get(word, Status.FAILED)
    if status in (Status.FAILED, Status.CRASHED) and entry.gate.waited_out:
        return Status.FAILED, HELD_TOO_LONG, ""
    if status in (Status.FAILED, Status.CRASHED) and last and last.status and last.failure:
        return last.status, last.error, ""
    return status, word or "the agent does not say why", ""


def _size(entry: Entry) -> int:
    """Bytes, at most."""
    return 4 * len(entry.result)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
