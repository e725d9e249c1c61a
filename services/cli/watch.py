"""`agentctl work watch`: progress as it happens, until all that is known is settled."""

from __future__ import annotations

import typer

from .session import Session, command
from .work import GroupOption, QueueArgument


def register(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "watch")(watch)


async def watch(session: Session, queue: QueueArgument, group: GroupOption = "") -> None:
    """Show progress until the queue, or a group of it, is done: counts, rates, who holds and finished what.

    \b
    Examples:
      agentctl work watch demo/summarize
      agentctl work watch demo/summarize --group 20260118-101500-3fa2
    """
    from .progress import follow  # with asyncio and the stubs

    await follow(session, queue, group)
