"""`agentctl work submit`: files, JSON lines and plain lines become work, and what became of each is said."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .choices import Dedupe, ResultFormat
from .output import Exit, FailedError, emit, fields
from .session import Session, command
from .work import LabelOption, QueueArgument, ResultOutput, batches

if TYPE_CHECKING:
    from libs.errors import MeshError
    from libs.work import Submission, Work


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "submit")(submit)


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
    shard_key: Annotated[
        str, typer.Option(help="Send these items to one shard of the queue. Default: each by its own key.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Print the results as they come.")] = False,
    format_: ResultOutput = ResultFormat.TABLE,
) -> None:
    """Submit work: each file, line or JSON object becomes an item. Says what became of them.

    JSON objects have exactly one of payload (text), payload_json, payload_base64, and may have id,
    content_type, dedupe_key, priority, delay, expires_in, max_attempts, backoff, group, ordering_key,
    shard_key, labels. Everything is read and checked before anything is submitted.

    \b
    Examples:
      agentctl work submit demo/summarize examples/documents/*.txt --wait
      echo '{"payload": "hello", "priority": 5, "delay": "30s"}' | agentctl work submit demo/greet --jsonl -
      sort urls.txt | agentctl work submit demo/fetch - --dedupe content
    """
    works = _read(files or [], jsonl, group or fresh_group(), label or [], dedupe, shard_key)
    outcomes = await session.client.submit_all(queue, works)
    as_json = format_ is ResultFormat.JSON
    ids = _report(queue, works, outcomes, as_json=as_json, stream=wait)
    failures = await _follow(session, ids, format_) if wait else 0
    _complain(session, works, outcomes)
    if failures:
        raise FailedError(f"{failures} of {len(ids)} items did not succeed: see `agentctl work get ID`")


def fresh_group() -> str:
    """A name that sorts by time and that nobody used before."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"


def _read(
    files: Sequence[str],
    jsonl: str,
    group: str,
    pairs: Sequence[str],
    dedupe: Dedupe | None,
    shard_key: str,
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
    return [intake.completed(work, group, extra, dedupe, shard_key) for work in works]


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
    for batch in batches(list(dict.fromkeys(ids))):
        async for item in session.client.results(ids=batch):
            printer.print(item)
            failures += item.state != work_pb2.WORK_STATE_SUCCEEDED
    return failures
