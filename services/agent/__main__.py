"""agentctl-agent: works until it is told to stop; its exit code says how it ended (`libs.exits`)."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

import uvloop

from libs import pki, telemetry, work
from libs.enrol import RefusedError, enrolled
from libs.exits import Exit
from libs.identity import Identity
from libs.settings import SettingsError, describe, load

from . import model
from .loop import Agent
from .settings import Settings


async def run(settings: Settings, instruction: str) -> Exit:
    """The agent, from its first connection to its exit code."""
    telemetry.start("agent", settings.log_level)
    async with AsyncExitStack() as stack:
        try:
            identity = await stack.enter_async_context(enrolled(settings))
        except RefusedError as error:
            sys.stderr.write(f"agent: {error}\n")
            return Exit.USAGE
        client = await stack.enter_async_context(work.connect(settings.coordination, identity))
        endpoint = await stack.enter_async_context(
            model.connect(
                settings.base_url,
                settings.key,
                settings.model_timeout,
                telemetry.tracer(),
                ca_file=settings.model_ca_file,
            )
        )
        agent = Agent(settings, instruction, client, endpoint, pki.own(identity))
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
        if not settings.identity_address:
            pki.own(Identity(settings.tls_dir))
    except (SettingsError, ValueError, OSError) as error:
        sys.stderr.write(f"agent: {error}\n")
        sys.exit(Exit.USAGE)
    sys.exit(uvloop.run(run(settings, instruction)))


if __name__ == "__main__":
    main()
