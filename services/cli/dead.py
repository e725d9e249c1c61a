"""`agentctl dead`: the dead letters of a queue: look, put back, delete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .choices import Cause
from .output import Exit, FailedError, emit, note
from .session import Session, command
from .work import GroupOption, LabelOption, QueueArgument, every_item

if TYPE_CHECKING:
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, redrive, purge.")

IdOption = Annotated[list[str] | None, typer.Option("--id", help="Only this item. May be repeated.")]
CauseOption = Annotated[Cause | None, typer.Option(help="Only those that died of this.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter of the queue.")]


@command(app, "list")
async def list_dead(
    session: Session,
    queue: QueueArgument,
    id_: IdOption = None,
    cause: CauseOption = None,
    label: LabelOption = None,
    group: GroupOption = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """List dead letters, oldest first, with the error that killed them.

    Example: agentctl dead list demo/summarize --cause attempts
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    from .items import show_items

    request = pb.ListDeadLettersRequest(queue=queue, filter=_filter(id_, cause, label, group))
    found = [item async for item in every_item(session, request, limit + 1)]
    if session.json:
        emit(pb.ListDeadLettersResponse(items=found[:limit]))
    else:
        show_items(found[:limit])
    if len(found) > limit:
        note(f"and more: raise --limit above {limit}")


@command(app, "redrive")
async def redrive(
    session: Session,
    queue: QueueArgument,
    id_: IdOption = None,
    cause: CauseOption = None,
    label: LabelOption = None,
    group: GroupOption = "",
    all_: AllOption = False,
    per_second: Annotated[
        float, typer.Option(min=0, help="Spread them: so many a second. 0: all at once.")
    ] = 0,
) -> None:
    """Put dead letters back: attempts from zero, history kept.

    Example: agentctl dead redrive demo/summarize --cause attempts --per-second 20
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    chosen = _chosen(_filter(id_, cause, label, group), all_=all_)
    total = pb.RedriveResponse()
    while True:
        request = pb.RedriveRequest(queue=queue, filter=chosen, per_second=per_second)
        answer = await session.stub.Redrive(request)
        total.MergeFrom(answer)
        if not answer.more or not answer.item_ids:  # those kept back by their dedupe key would come again
            break
    total.more = answer.more
    duplicates = list(dict.fromkeys(total.duplicate_ids))
    del total.duplicate_ids[:]
    total.duplicate_ids.extend(duplicates)
    if session.json:
        emit(total)
    else:
        kept = f"; {len(duplicates)} stay, since another item has their dedupe key" if duplicates else ""
        typer.echo(f"{len(total.item_ids)} put back{kept}")
    if not total.item_ids and not duplicates:
        raise FailedError("no dead letter matches", Exit.NOT_FOUND)


@command(app, "purge")
async def purge(
    session: Session,
    queue: QueueArgument,
    id_: IdOption = None,
    cause: CauseOption = None,
    label: LabelOption = None,
    group: GroupOption = "",
    all_: AllOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete dead letters for good. Asks first on a terminal; without one, --all needs --yes.

    Example: agentctl dead purge demo/summarize --label team=search --yes
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    chosen = _chosen(_filter(id_, cause, label, group), all_=all_)
    if all_ and not yes and not sys.stdin.isatty():
        raise FailedError(
            "--all deletes every dead letter, and nobody can be asked here: add --yes", Exit.USAGE
        )
    if not yes and sys.stdin.isatty():
        which = "every dead letter" if all_ else "the dead letters that match"
        if not typer.confirm(f"Delete {which} of {queue} for good?", err=True):
            raise FailedError("nothing was deleted")
    total = 0
    while True:
        answer = await session.stub.Purge(pb.PurgeRequest(queue=queue, filter=chosen, all=all_))
        total += answer.purged_count
        if not answer.more or not answer.purged_count:
            break
    if session.json:
        emit(pb.PurgeResponse(purged_count=total, more=answer.more))
    else:
        typer.echo(f"{total} deleted")
    if not total:
        raise FailedError("no dead letter matches", Exit.NOT_FOUND)


def _filter(
    ids: Sequence[str] | None, cause: Cause | None, label: Sequence[str] | None, group: str
) -> pb.DeadLetterFilter:
    from agentctl.coordination.v1 import coordination_service_pb2 as pb
    from agentctl.coordination.v1 import work_pb2

    from .intake import labels

    chosen = pb.DeadLetterFilter(item_ids=ids or [], labels=labels(label or []), group=group)
    if cause:
        chosen.cause = work_pb2.DeadCause.Value(f"DEAD_CAUSE_{cause.name}")
    return chosen


def _chosen(chosen: pb.DeadLetterFilter, *, all_: bool) -> pb.DeadLetterFilter:
    if bool(chosen.ListFields()) == all_:
        raise FailedError(
            "say which: --id, --cause, --label, --group, or --all alone for every one", Exit.USAGE
        )
    return chosen
