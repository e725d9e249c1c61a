"""How items look: one row among many, one result, one item in full."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from agentctl.coordination.v1 import work_pb2

from .choices import ResultFormat
from .durations import span
from .output import console, emit, fields, one_line, printable, show

_ID = "ID"
_COLUMNS = ("NAME", "STATE", ">TRIES", ">AGE", "WHO", "NOTE")
_NAME_WIDTH = 28
_TEXT_TYPES = ("text/", "application/json")


def state(item: work_pb2.Item) -> str:
    """`leased`, `dead`, …"""
    return work_pb2.WorkState.Name(item.state).removeprefix("WORK_STATE_").lower()


def cause(item: work_pb2.Item) -> str:
    """`attempts`, `lease-expired`, …; empty for an item that is not dead."""
    name = work_pb2.DeadCause.Name(item.dead_cause).removeprefix("DEAD_CAUSE_")
    return "" if name == "UNSPECIFIED" else name.lower().replace("_", "-")


def short(spiffe_id: str) -> str:
    """A principal as people know it: the pod of an agent, else the path of the id."""
    path = spiffe_id.partition("://")[2].partition("/")[2]
    parts = path.split("/")
    return parts[5] if len(parts) > 5 and parts[2] == "agent" else path


def name(item: work_pb2.Item) -> str:
    """What the submitter would call it: its file, its name, else its labels or dedupe key."""
    for label in ("file", "name"):
        if label in item.labels:
            return item.labels[label]
    return ",".join(f"{key}={value}" for key, value in sorted(item.labels.items())) or item.dedupe_key


def note(item: work_pb2.Item) -> str:
    """The one thing to know about where the item stands."""
    if item.state == work_pb2.WORK_STATE_DELAYED:
        return f"ready in {span(item.ready_in.ToTimedelta().total_seconds())}{_last_error(item, '; ')}"
    if item.state == work_pb2.WORK_STATE_LEASED:
        left = f"lease ends in {span(item.lease_expires_in.ToTimedelta().total_seconds())}"
        return f"{left}; cancel asked for: {item.cancel_reason}" if item.cancel_reason else left
    if item.state == work_pb2.WORK_STATE_DEAD:
        return f"{cause(item)}{_last_error(item, ': ')}"
    if item.state == work_pb2.WORK_STATE_CANCELED:
        return item.cancel_reason
    if item.state == work_pb2.WORK_STATE_SUCCEEDED:
        return result(item)
    return _last_error(item, "")


def result(item: work_pb2.Item) -> str:
    """The result as text; what is not text is described."""
    return _text(item.result, item.result_content_type)


def show_items(items: Iterable[work_pb2.Item]) -> None:
    """A table of items, with their shards if they have some."""
    listed = list(items)
    if any(item.HasField("shard") for item in listed):
        show((_ID, ">SHARD", *_COLUMNS), ([item.id, _shard(item), *_cells(item)] for item in listed))
    else:
        show((_ID, *_COLUMNS), ([item.id, *_cells(item)] for item in listed))


class ResultPrinter:
    """Prints results one by one as they come."""

    def __init__(self, shape: ResultFormat) -> None:
        self._shape = shape
        self._width = console().width
        self._begun = False

    def print(self, item: work_pb2.Item) -> None:
        """One more result."""
        if self._shape is ResultFormat.JSON:
            emit(item, stream=True)
        elif self._shape is ResultFormat.TEXT:
            body = result(item) if item.state == work_pb2.WORK_STATE_SUCCEEDED else note(item)
            title = name(item) or item.id
            typer.echo(f"== {one_line(title)} ({state(item)}, {short(item.holder) or 'nobody'}) ==")
            typer.echo(f"{printable(body).rstrip()}\n")
        else:
            if not self._begun:
                self._line("ID", "NAME", "STATE", "TRIES", "WHO", "RESULT")
            tries = f"{item.attempt}/{item.max_attempts}"
            self._line(item.id, name(item), state(item), tries, short(item.holder), note(item))
        self._begun = True

    def _line(self, *cells: str) -> None:
        identifier, title, standing, tries, who, text = map(one_line, cells)
        title = title if len(title) <= _NAME_WIDTH else title[: _NAME_WIDTH - 1] + "…"
        line = f"{identifier:<36}  {title:<{_NAME_WIDTH}}  {standing:<9}  {tries:>5}  {who:<14}  {text}"
        typer.echo(line if len(line) <= self._width else line[: self._width - 1] + "…")


def describe(item: work_pb2.Item) -> None:
    """One item in full."""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(item.labels.items()))
    settled = (
        span(item.settled_ago.ToTimedelta().total_seconds()) + " ago" if item.HasField("settled_ago") else ""
    )
    fields([
        ("id", item.id), ("queue", item.queue), ("state", state(item)), ("standing", _standing(item)),
        ("attempts", f"{item.attempt} of {item.max_attempts}"), ("priority", item.priority),
        ("submitted", span(item.age.ToTimedelta().total_seconds()) + " ago"), ("by", item.submitter),
        ("settled", settled), ("holder", item.holder), ("group", item.group), ("labels", labels),
        ("dedupe key", item.dedupe_key), ("ordering key", item.ordering_key), ("shard", _shard(item)),
        ("payload", f"{item.payload_size} bytes, {item.content_type or 'of no stated type'}"),
    ])  # fmt: skip
    for failure in item.failures:
        ago = span(failure.ago.ToTimedelta().total_seconds())
        typer.echo(
            f"  attempt {failure.attempt}, {ago} ago, {short(failure.holder)}: {one_line(failure.error)}"
        )
    if item.payload:
        typer.echo(f"\n-- payload --\n{printable(_text(item.payload, item.content_type)).rstrip()}")
    if item.result:
        typer.echo(f"\n-- result --\n{printable(result(item)).rstrip()}")


def _shard(item: work_pb2.Item) -> str:
    return str(item.shard) if item.HasField("shard") else ""


def _standing(item: work_pb2.Item) -> str:
    return "" if item.state == work_pb2.WORK_STATE_SUCCEEDED else note(item)


def _cells(item: work_pb2.Item) -> list[str]:
    title = name(item)
    return [
        title if len(title) <= _NAME_WIDTH else title[: _NAME_WIDTH - 1] + "…",
        state(item),
        f"{item.attempt}/{item.max_attempts}",
        span(item.age.ToTimedelta().total_seconds()),
        short(item.holder),
        note(item),
    ]


def _last_error(item: work_pb2.Item, before: str) -> str:
    return f"{before}{item.failures[-1].error}" if item.failures else ""


def _text(content: bytes, kind: str) -> str:
    if kind.startswith(_TEXT_TYPES) or not kind:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return f"({len(content)} bytes of {kind or 'no stated type'})" if content else ""
