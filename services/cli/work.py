"""`agentctl work`: submit work, look at it, cancel it, and read what came of it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .choices import Dedupe, ResultFormat, State
from .output import Exit, FailedError, emit, fields, note, show
from .session import Session, command

if TYPE_CHECKING:
    from agentctl.coordination.v1 import work_pb2
    from libs.errors import MeshError
    from libs.work import Submission, Work

app = typer.Typer(no_args_is_help=True, help="Submit work, follow it, read its results.")

_BATCH = 1000  # entries of one request

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="namespace/name")]
SomeQueueArgument = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="namespace/name. Default: the local plane's.")
]
GroupOption = Annotated[str, typer.Option(help="Only items submitted as this group.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")
]
ReasonOption = Annotated[str, typer.Option(help="Why, for whoever looks later.")]


ResultOutput = Annotated[
    ResultFormat, typer.Option("-o", "--output", help="A line each, in full, or for programs.")
]


@command(app, "submit")
async def submit(
    session: Session,
    queue: QueueArgument,
    files: Annotated[
        list[str] | None, typer.Argument(help="One item a file. `-`: one item a line of stdin.")
    ] = None,
    jsonl: Annotated[
        str, typer.Option(metavar="FILE", help="One item a JSON object a line. `-`: stdin.")
    ] = "",
    group: Annotated[str, typer.Option(help="Name to follow these items by. Default: a fresh one.")] = "",
    label: LabelOption = None,
    dedupe: Annotated[
        Dedupe | None, typer.Option(help="Do not add what is there already, by content or file name.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Print the results as they come.")] = False,
    format_: ResultOutput = ResultFormat.TABLE,
) -> None:
    """Submit work: each file, line or JSON object becomes an item. Says what became of them.

    JSON objects have exactly one of payload (text), payload_json, payload_base64, and may have id,
    content_type, dedupe_key, priority, delay, expires_in, max_attempts, backoff, group, ordering_key,
    shard_key, labels. Everything is read and checked before anything is submitted.

    \b
    Examples:
      agentctl work submit demo/summarize docs/*.txt --wait
      echo '{"payload": "hello", "priority": 5, "delay": "30s"}' | agentctl work submit demo/greet --jsonl -
      sort urls.txt | agentctl work submit demo/fetch - --dedupe content
    """
    works = _read(files or [], jsonl, group or fresh_group(), label or [], dedupe)
    outcomes = await session.client.submit_all(queue, works)
    as_json = format_ is ResultFormat.JSON
    ids = _report(queue, works, outcomes, as_json=as_json, stream=wait)
    failures = await _follow(session, ids, format_) if wait else 0
    _complain(session, works, outcomes)
    if failures:
        raise FailedError(f"{failures} of {len(ids)} items did not succeed: see `agentctl work get ID`")


@command(app, "results")
async def results(
    session: Session,
    queue: SomeQueueArgument = None,
    group: GroupOption = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on after everything known is settled.")
    ] = False,
    format_: ResultOutput = ResultFormat.TABLE,
) -> None:
    """Print what came of items, in the order in which they settled, until all that are known have.

    \b
    Examples:
      agentctl work results demo/summarize --group 20260118-101500-3fa2 -o text
      agentctl work results demo/summarize --follow -o json | jq -r .result
    """
    from .items import ResultPrinter

    printer = ResultPrinter(format_)
    async for item in session.client.results(queue=session.queue(queue), group=group, follow=follow):
        printer.print(item)


@command(app, "get")
async def get(
    session: Session,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of items.")],
    payload: Annotated[bool, typer.Option("--payload", help="Also what was submitted.")] = False,
) -> None:
    """Show items in full: where they stand, who held them, what went wrong, the result.

    Example: agentctl work get 0198f3a2-7c1e-7b52-9c7e-3f5d2a1b4c6d --payload
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    from .items import describe

    found = pb.GetItemsResponse()
    size = 100 if payload else _BATCH
    for batch in _batches(ids, size):
        found.MergeFrom(
            await session.stub.GetItems(pb.GetItemsRequest(item_ids=batch, include_payload=payload))
        )
    if session.json:
        emit(found)
    else:
        for index, item in enumerate(found.items):
            if index:
                typer.echo()
            describe(item)
    if found.missing_ids:
        raise FailedError(f"no such item: {', '.join(found.missing_ids)}", Exit.NOT_FOUND)


@command(app, "list")
async def list_items(
    session: Session,
    queue: SomeQueueArgument = None,
    state: Annotated[
        list[State] | None, typer.Option(help="May be repeated. Default: all not settled.")
    ] = None,
    label: LabelOption = None,
    group: GroupOption = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """List the items of a queue, oldest first.

    Example: agentctl work list demo/summarize --state leased --state delayed --label team=search
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    from .intake import labels
    from .items import show_items

    request = pb.ListItemsRequest(
        queue=session.queue(queue), states=states(state or []), labels=labels(label or []), group=group
    )
    found: list[work_pb2.Item] = []
    more = False
    async for item in every_item(session, request, limit + 1):
        more = len(found) == limit
        if not more:
            found.append(item)
    if session.json:
        emit(pb.ListItemsResponse(items=found))
    else:
        show_items(found)
    if more:
        note(f"and more: raise --limit above {limit}")


@command(app, "cancel")
async def cancel(
    session: Session,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of items.")],
    reason: ReasonOption = "",
) -> None:
    """Cancel items. Of one that somebody holds, the holder is asked to stop at its next renewal.

    \b
    Examples:
      agentctl work cancel 0198f3a2-7c1e-7b52-9c7e-3f5d2a1b4c6d --reason "wrong input"
      agentctl work list demo/summarize --group G -o json | jq -r '.items[].id' | xargs agentctl work cancel
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb
    from agentctl.coordination.v1 import work_pb2

    answer = pb.CancelResponse()
    for batch in _batches(ids, _BATCH):
        answer.MergeFrom(await session.stub.Cancel(pb.CancelRequest(item_ids=batch, reason=reason)))
    said = {
        pb.CANCEL_STATUS_CANCELED: "canceled",
        pb.CANCEL_STATUS_LEASED: "its holder is asked to stop",
        pb.CANCEL_STATUS_NOT_FOUND: "no such item",
    }
    if session.json:
        emit(answer)
    else:
        rows = []
        for id_, verdict in zip(ids, answer.verdicts, strict=True):
            stands = work_pb2.WorkState.Name(verdict.state).removeprefix("WORK_STATE_").lower()
            rows.append((id_, said.get(verdict.status, f"too late: {stands}")))
        show(("ID", "VERDICT"), rows)
    verdicts = {verdict.status for verdict in answer.verdicts}
    if pb.CANCEL_STATUS_NOT_FOUND in verdicts:
        raise FailedError("some items do not exist, or not for you", Exit.NOT_FOUND)
    if pb.CANCEL_STATUS_SETTLED in verdicts:
        raise FailedError("some items were settled before")


def states(chosen: Sequence[State]) -> list[work_pb2.WorkState.ValueType]:
    """The wire's states for those chosen."""
    from agentctl.coordination.v1 import work_pb2

    if State.ALL in chosen:
        chosen = [each for each in State if each is not State.ALL]
    return [work_pb2.WorkState.Value(f"WORK_STATE_{each.name}") for each in chosen]


async def every_item(session: Session, request: Any, limit: int) -> AsyncIterator[work_pb2.Item]:
    """The items that a ListItems or ListDeadLetters request asks for, page by page."""
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    dead = isinstance(request, pb.ListDeadLettersRequest)
    ask = session.stub.ListDeadLetters if dead else session.stub.ListItems
    while limit > 0:
        request.page_size = min(limit, _BATCH)
        page = await ask(request)
        for item in page.items:
            yield item
        limit -= len(page.items)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def fresh_group() -> str:
    """A name that sorts by time and that nobody used before."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"


def _read(
    files: Sequence[str], jsonl: str, group: str, pairs: Sequence[str], dedupe: Dedupe | None
) -> list[Work]:
    from . import intake

    given = [files and files != ["-"], files == ["-"], jsonl]
    if sum(map(bool, given)) != 1:
        raise FailedError("nothing, or too much, to submit: give FILES, or --jsonl FILE, or -", Exit.USAGE)
    if "-" in files and len(files) > 1:
        raise FailedError("-: stdin cannot be mixed with files", Exit.USAGE)
    if jsonl == "-":
        works = intake.from_jsonl(sys.stdin.buffer, "stdin")
    elif jsonl:
        with open(jsonl, "rb") as lines:
            works = intake.from_jsonl(lines, jsonl)
    elif files == ["-"]:
        works = intake.from_lines(sys.stdin.buffer)
    else:
        works = intake.from_files(map(Path, files))
    if not works:
        raise FailedError("nothing to submit: the input is empty")
    extra = intake.labels(pairs)
    return [intake.completed(work, group, extra, dedupe) for work in works]


def _report(
    queue: str,
    works: Sequence[Work],
    outcomes: Sequence[Submission | MeshError],
    *,
    as_json: bool,
    stream: bool,
) -> list[str]:
    """Prints what became of the items; returns the ids to wait for."""
    from libs.errors import MeshError
    from libs.work import QueueFullError

    counts: Counter[str] = Counter(accepted=0, duplicate=0, full=0)
    listed, ids = [], []
    for work, outcome in zip(works, outcomes, strict=True):
        id_, error = work.id, ""
        if isinstance(outcome, MeshError):
            error = str(outcome)
            verdict = "full" if isinstance(outcome, QueueFullError) else outcome.reason.lower()
        else:
            id_, verdict = outcome.id, "duplicate" if outcome.duplicate else "accepted"
            ids.append(id_)
        counts[verdict] += 1
        name = work.labels.get("file", "")
        listed.append({"item_id": id_, "name": name, "group": work.group, "verdict": verdict, "error": error})
    groups = list(dict.fromkeys(work.group for work in works))
    if as_json:
        emit({"queue": queue, "groups": groups, "counts": dict(counts), "items": listed}, stream=stream)
    elif ids:
        fields([("queue", queue), ("group", ", ".join(groups)), *counts.items()])
    return ids


def _complain(session: Session, works: Sequence[Work], outcomes: Sequence[Submission | MeshError]) -> None:
    """FailedError if an item was not added: how many, and the first of them by name."""
    from libs.errors import MeshError

    wrong = [(work, each) for work, each in zip(works, outcomes, strict=True) if isinstance(each, MeshError)]
    if wrong:
        work, error = wrong[0]
        first = session.failed(error)
        count = f"{len(wrong)} of {len(works)} items not added; " if len(works) > 1 else ""
        raise FailedError(f"{count}{work.labels.get('file') or work.id}: {first}", first.code)


async def _follow(session: Session, ids: Sequence[str], shape: ResultFormat) -> int:
    """Prints the results of these items as they come; how many of them are no success."""
    from agentctl.coordination.v1 import work_pb2

    from .items import ResultPrinter

    printer, failures = ResultPrinter(shape), 0
    for batch in _batches(list(dict.fromkeys(ids)), _BATCH):
        async for item in session.client.results(ids=batch):
            printer.print(item)
            failures += item.state != work_pb2.WORK_STATE_SUCCEEDED
    return failures


def _batches(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
