"""`agentctl up`: a whole plane on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .choices import Front, Store
from .output import note, one_line_errors, printable
from .session import Settings, StateDirOption
from .state import ADMINISTRATOR, State

if TYPE_CHECKING:
    from .plane import LocalPlane, Plan

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
        from .plane import LocalPlane, Plan
        from .processes import alone

        plan = Plan(queue, agents, store, dsn_file, instruction, port, front, settings.environment)
        settings.state.prepare()
        with alone(settings.state):
            asyncio.run(_run(LocalPlane(plan, settings.state, say), plan, settings.state))


async def _run(plane: LocalPlane, plan: Plan, state: State) -> None:
    """Until a signal, or until the plane cannot go on; either way all children are gone afterwards."""
    stopping, hurry = asyncio.Event(), asyncio.Event()
    with _signals(stopping, hurry):
        await plane.sweep()
        running = asyncio.create_task(_start_and_run(plane, plan, state))
        waiting = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            if stopping.is_set():
                note("stopping: agents finish or give back what they hold (Ctrl-C again: at once)")
            else:
                note("this cannot go on: stopping everything")
        finally:
            waiting.cancel()
            running.cancel()
            ended = (await asyncio.gather(running, return_exceptions=True))[0]
            await plane.stop(hurry)
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise _first(ended)


async def _start_and_run(plane: LocalPlane, plan: Plan, state: State) -> None:
    from .plane import releaser

    await plane.start()
    tls_dir = state.identity(ADMINISTRATOR)
    typer.echo(_welcome(plane.address, plane.domain, plan, state))
    await plane.run(releaser(plane.address, tls_dir))


@contextmanager
def _signals(stopping: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def say(name: str, event: str) -> None:
    """A line about a child. Whoever read them may have gone (`agentctl up | head`); the plane goes on."""
    with suppress(BrokenPipeError):
        typer.echo(f"{datetime.now():%H:%M:%S}  {name:<14}  {printable(event)}")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _welcome(address: str, domain: str, plan: Plan, state: State) -> str:
    tls = state.identity(ADMINISTRATOR)
    model = (
        plan.environment.get("OPENAI_BASE_URL")
        or "a stand-in that is no model (set OPENAI_BASE_URL for a real one)"
    )
    files = ("-cacert", f"{tls}/ca.crt", "-cert", f"{tls}/tls.crt", "-key", f"{tls}/tls.key")
    called = ("-authority", f"coordination.cp.{domain}", address)
    grpcurl = ("grpcurl", *files, *called, "list", "agentctl.coordination.v1.CoordinationService")
    return f"""
The plane is up. Model: {model}. Logs: {state.logs}

  agentctl work submit {plan.queue} FILES... --wait     submit work and see its results
  agentctl work watch {plan.queue}                      follow the queue
  agentctl queues list

  {shlex.join(grpcurl)}

Ctrl-C stops it.
"""
