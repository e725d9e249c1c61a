"""`agentctl work`: look at work, cancel it, and read what came of it. (`submit` and `watch` do the rest.)"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import names
from .choices import ResultFormat, State
from .output import Exit, FailedError, emit, note, show
from .session import Session, command

if TYPE_CHECKING:
    from agentctl.coordination.v1 import work_pb2

app = typer.Typer(no_args_is_help=True, help="Submit work, follow it, read its results.")

BATCH = 1000  # entries of one request

QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", parser=names.queue_option, help="namespace/name")
]
GroupOption = Annotated[str, typer.Option(help="Only items submitted as this group.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")
]
ReasonOption = Annotated[str, typer.Option(help="Why, for whoever looks later.")]


ResultOutput = Annotated[
    ResultFormat, typer.Option("-o", "--output", help="A line each, in full, or for programs.")
]


@command(app, "results")
async def results(
    session: Session,
    queue: QueueArgument,
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
    async for item in session.client.results(queue=queue, group=group, follow=follow):
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
    size = 100 if payload else BATCH
    for batch in batches(ids, size):
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
    queue: QueueArgument,
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
        queue=queue, states=states(state or []), labels=labels(label or []), group=group
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
    for batch in batches(ids, BATCH):
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
        request.page_size = min(limit, BATCH)
        page = await ask(request)
        for item in page.items:
            yield item
        limit -= len(page.items)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def batches(ids: Sequence[str], size: int = BATCH) -> list[Sequence[str]]:
    """The ids in as many lists as requests need."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]
