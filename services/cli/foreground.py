"""Runs a plane in the foreground, until a signal or until it cannot go on."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

import typer

from .output import note, printable
from .plane import LocalPlane, Plan, releaser
from .processes import alone
from .state import ADMINISTRATOR, State


def run(plan: Plan, state: State) -> None:
    """Start it, say how to use it, and stop it at the end. The folder is ours alone meanwhile."""
    state.prepare()
    with alone(state):
        asyncio.run(_run(LocalPlane(plan, state, say), plan, state))


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
