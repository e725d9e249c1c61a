"""`agentctl up`: a whole plane on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .choices import Front, Store
from .output import one_line_errors
from .session import Settings, StateDirOption

_INSTRUCTION = "Summarise the document in three sentences."


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("up")(up)


def up(
    ctx: typer.Context,
    state_dir: StateDirOption = None,
    agents: Annotated[int, typer.Option(min=0, max=256, help="How many agents.")] = 2,
    queue: Annotated[
        str, typer.Option(help="The queue that they work on, namespace/name.")
    ] = "demo/summarize",
    instruction: Annotated[
        str, typer.Option(metavar="FILE|TEXT", help="What they do with each item.")
    ] = _INSTRUCTION,
    store: Annotated[Store, typer.Option(help="Where work is kept.")] = Store.EMBEDDED,
    dsn_file: Annotated[
        Path | None, typer.Option(help="With --store postgres: a file with its connection string.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of coordination. 0: a free one.")] = 0,
    front: Annotated[Front, typer.Option(help="HTTP/2 server of coordination.")] = Front.H2CORN,
) -> None:
    """Start a plane here: coordination, agents, and a stand-in for a model. Runs until Ctrl-C.

    Everything listens on loopback only and speaks mTLS by a certificate authority of its own. State, keys
    and logs are in the state folder, from which the other commands know where to call. With OPENAI_BASE_URL
    (and OPENAI_API_KEY, AGENT_MODEL) set, the agents use that model; other settings of the services are
    passed on too (AGENT_SLOTS, AGENT_LEASE, PROVIDER_LATENCY, AGENTCTL_LOG_LEVEL, ...).

    Ctrl-C stops agents first, then coordination; a second Ctrl-C kills what is left. An agent that dies is
    started again; if coordination dies, all stops.

    \b
    Examples:
      agentctl up
      agentctl up --agents 4 --queue demo/translate --instruction translate.txt
      OPENAI_BASE_URL=https://api.openai.com/v1 OPENAI_API_KEY=... AGENT_MODEL=gpt-4.1-mini agentctl up
    """
    with one_line_errors():
        settings = Settings.of(ctx, state_dir)
        from .foreground import run  # with asyncio and all that a plane needs
        from .plane import Plan

        run(
            Plan(queue, agents, store, dsn_file, instruction, port, front, settings.environment),
            settings.state,
        )
