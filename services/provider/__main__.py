"""agentctl-provider: serves until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys

from aiohttp import web

from libs import telemetry
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .server import Provider
from .settings import Settings


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is begun."""
    telemetry.start("provider", settings.log_level)
    host, _, port = settings.listen.rpartition(":")
    runner = web.AppRunner(Provider(settings).application(), access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, int(port))
        await site.start()
        logging.getLogger("provider").info("serving", extra={"port": runner.addresses[0][1]})
        await stopped()
    finally:
        await runner.cleanup()


def main() -> None:
    """The command."""
    if sys.argv[1:]:
        sys.stderr.write(
            f"provider: configured by the environment only\n\n{describe(Settings, 'PROVIDER_')}\n"
        )
        sys.exit(2)
    try:
        settings = load(Settings, "PROVIDER_")
    except SettingsError as error:
        sys.stderr.write(f"provider: {error}\n")
        sys.exit(2)
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
