"""The process: options, listeners, signals, one mode, and the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from . import clock, exits, health, modes, report
from .flags import UsageError
from .journal import Journal
from .listener import Listener
from .management import Management
from .manifest import manifest
from .metrics import Metrics
from .options import Options, parse
from .supervisor import TICK, Supervisor
from .turns import Outcome, Runner, traceparent

_MODES: dict[str, Callable[[Supervisor], Awaitable[Outcome]]] = {
    "once": modes.once,
    "loop": modes.loop,
    "schedule": modes.schedule,
    "reactive": modes.reactive,
}
_REPORTING = ("once", "loop", "schedule")
_LEAVE_TIME = 3.0  # for a mode to end after the drain: it unsubscribes


def main() -> int:
    """Runs to the end; the exit code."""
    try:
        options = parse(sys.argv[1:], os.environ)
    except UsageError as error:
        sys.stderr.write(f"agentd (stand-in): {error}\n")
        return exits.USAGE
    if options.probe is not None:
        sys.stdout.write(_probe(options))
        return exits.OK
    try:
        return asyncio.run(_serve(options))
    except (OSError, ssl.SSLError) as error:
        sys.stderr.write(f"agentd (stand-in): {error}\n")
        return exits.FAILURE


def _probe(options: Options) -> str:
    if options.probe == "capabilities":
        return json.dumps(manifest(options)) + "\n"
    return f"agentd {options.agent_version}\n" if options.probe == "version" else "ok\n"


async def _serve(options: Options) -> int:
    trace = traceparent(options.traceparent).split("-")[1]
    journal = Journal(
        sys.stderr, run_id=options.run_id, trace_id=trace, level=options.log_level, ring=options.events_ring
    )
    metrics = Metrics()
    connector = aiohttp.TCPConnector(force_close=True, ssl=_client_context(options))
    async with aiohttp.ClientSession(connector=connector) as http:
        supervisor = Supervisor(options, journal, metrics, Runner(options, http, journal, metrics))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, supervisor.terminate)
        journal.emit("info", "proc.start", version=options.agent_version, mode=options.mode, standin=True)
        async with _listening(supervisor):
            outcome = await _live(supervisor)
            supervisor.exiting.set()
            journal.close()
        code = exits.OK if supervisor.draining else outcome.exit_code
        journal.emit("info", "proc.exit", exit_code=code, status=outcome.status)
    if code in (exits.PARTIAL, exits.BUDGET) and options.budget_exit_code is not None:
        return options.budget_exit_code
    return code


async def _live(supervisor: Supervisor) -> Outcome:
    """The mode until it ends by itself, or the drain until nothing runs any more; then the report."""
    options, begun, clock_begun = supervisor.options, clock.now(), time.monotonic()
    mode = asyncio.ensure_future(_MODES[options.mode](supervisor))
    drained = asyncio.create_task(supervisor.drained())
    await asyncio.wait({mode, drained}, return_when=asyncio.FIRST_COMPLETED)
    if supervisor.draining:
        await drained
        await asyncio.wait({mode}, timeout=_LEAVE_TIME)
    drained.cancel()
    if not mode.done():
        mode.cancel()
        await asyncio.wait({mode})
    outcome = Outcome.of("cancelled") if mode.cancelled() else mode.result()
    if options.report_file is not None and options.mode in _REPORTING:
        duration = round((time.monotonic() - clock_begun) * 1000)
        body = report.report(options, outcome, begun=begun, ended=clock.now(), duration_ms=duration)
        report.write(options.report_file, json.dumps(body))
    return outcome


@asynccontextmanager
async def _listening(supervisor: Supervisor) -> AsyncIterator[None]:
    """Both ports, and the 200 ms tick, for as long as the block lasts."""
    options = supervisor.options
    listener = Listener(options, Management(supervisor)) if options.serve else None
    plain = await health.serve(supervisor) if options.metrics_addr else None
    try:
        if listener is not None:
            await listener.start()
        heart = asyncio.create_task(_beat(supervisor, listener))
        try:
            yield
        finally:
            heart.cancel()
    finally:
        if listener is not None:
            await listener.stop()
        if plain is not None:
            await plain.cleanup()


async def _beat(supervisor: Supervisor, listener: Listener | None) -> None:
    while True:
        supervisor.tick()
        if listener is not None:
            await listener.refresh()
        await asyncio.sleep(TICK)


def _client_context(options: Options) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if options.tls_ca is not None:
        context.load_verify_locations(options.tls_ca)
    return context
