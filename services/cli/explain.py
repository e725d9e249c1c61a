"""`agentctl explain`: why nothing is delivered."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import emit, fields, show
from .session import Session, command


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "explain")(explain)


async def explain(
    session: Session,
    subject: Annotated[str, typer.Argument(metavar="QUEUE|ITEM-ID", help="namespace/name, or an item's id.")],
) -> None:
    """Say what stands in the way of a queue or an item: paused, delayed, no worker, an ordering key, …

    \b
    Examples:
      agentctl explain demo/summarize
      agentctl explain 0198f3a2-7c1e-7b52-9c7e-3f5d2a1b4c6d
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    from .items import name, short, state
    from .queues import standing

    is_queue = "/" in subject
    request = pb.ExplainRequest(queue=subject) if is_queue else pb.ExplainRequest(item_id=subject)
    answer = await session.stub.Explain(request)
    if session.json:
        emit(answer)
        return
    item, queue = answer.item, answer.queue
    counts = f"{queue.ready_count} ready, {queue.leased_count} leased, {queue.delayed_count} delayed"
    shown = [("queue", f"{queue.name} ({standing(queue)}; {counts})")] if queue.name else []
    if not is_queue:
        holder = ("held by" if item.HasField("lease_expires_in") else "last held by", short(item.holder))
        shown += [("item", f"{item.id} {name(item)}".strip()), ("state", state(item)), holder]
    fields(shown)
    if answer.obstacles:
        show(("OBSTACLE", "DETAIL"), ((each.code, each.detail) for each in answer.obstacles))
    else:
        typer.echo("nothing stands in the way")
