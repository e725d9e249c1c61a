"""agentctl-agent: works until it is told to stop; its exit code says how it ended (`exits`)."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

import uvloop

from libs import pki, telemetry, work
from libs.identity import Identity
from libs.settings import SettingsError, describe, load

from . import model
from .exits import Exit
from .loop import Agent
from .settings import Settings


async def run(settings: Settings, instruction: str) -> Exit:
    """The agent, from its first connection to its exit code."""
    telemetry.start("agent", settings.log_level)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            work.connect(settings.coordination, Identity(settings.tls_dir))
        )
        endpoint = await stack.enter_async_context(
            model.connect(settings.base_url, settings.key, settings.model_timeout, telemetry.tracer())
        )
        agent = Agent(settings, instruction, client, endpoint)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, agent.stop)
        await stack.enter_async_context(
            telemetry.plain_port(settings.metrics_port, agent.ready, settings.host)
        )
        return await agent.run()


def main() -> None:
    """The command."""
    if sys.argv[1:]:
        sys.stderr.write(f"agent: configured by the environment only\n\n{describe(Settings, 'AGENT_')}\n")
        sys.exit(Exit.USAGE)
    try:
        settings = load(Settings, "AGENT_")
        instruction = settings.prompt()
        pki.own(Identity(settings.tls_dir))
    except (SettingsError, ValueError, OSError) as error:
        sys.stderr.write(f"agent: {error}\n")
        sys.exit(Exit.USAGE)
    sys.exit(uvloop.run(run(settings, instruction)))


if __name__ == "__main__":
    main()
