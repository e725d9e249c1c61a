"""agentctl-bridge: serves until it is told to stop, or until a drain of its agent is over."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from libs import pki, telemetry
from libs.enrol import RefusedError
from libs.exits import Exit
from libs.identity import Identity
from libs.settings import SettingsError, describe, load

from .bridging import Bridging, bridging
from .settings import Settings

_log = logging.getLogger(__name__)


async def run(settings: Settings, instruction: str) -> Exit:
    """The bridge, from its certificates to its exit code. RefusedError if it gets none from the mesh."""
    telemetry.start("bridge", settings.log_level)
    signalled: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.put_nowait, None)
    async with bridging(settings, instruction) as bridge:
        await _until_the_end(bridge, signalled)
        if settings.report_file:
            _leave_report(bridge, settings.report_file)
        return Exit.SERVER if bridge.agent.failure else Exit.OK


async def _until_the_end(bridge: Bridging, signalled: asyncio.Queue[None]) -> None:
    """Told to stop, it drains an agent that is still there; in a pod the agent has ended by then. The second
    time it goes at once."""
    ended = asyncio.create_task(bridge.agent.ended.wait())
    try:
        for _ in range(2):
            told = asyncio.create_task(signalled.get())
            await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            if ended.done() or not bridge.presence.is_here:
                return
            await bridge.agent.drain(None)
    finally:
        ended.cancel()


def _leave_report(bridge: Bridging, path: Path) -> None:
    if (report := bridge.report()) is None:
        return
    try:
        report.write(path)
    except OSError as error:
        _log.error("cannot write the report", extra={"reason": str(error)})


def main() -> None:
    """The command."""
    if sys.argv[1:]:
        sys.stderr.write(f"bridge: configured by the environment only\n\n{describe(Settings, 'BRIDGE_')}\n")
        sys.exit(Exit.USAGE)
    try:
        settings = load(Settings, "BRIDGE_")
        instruction = settings.standing()
        if not settings.identity_address:
            pki.own(Identity(settings.tls_dir))
    except (SettingsError, ValueError, OSError) as error:
        sys.stderr.write(f"bridge: {error}\n")
        sys.exit(Exit.USAGE)
    try:
        code = uvloop.run(run(settings, instruction))
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"bridge: {error}\n")
        code = Exit.FAILURE
    sys.exit(code)


if __name__ == "__main__":
    main()
