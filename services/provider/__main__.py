"""agentctl-provider: serves until it is told to stop."""

from __future__ import annotations

import asyncio
import sys

from libs import telemetry
from libs.enrol import Credentials, RefusedError
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .providing import providing
from .settings import Settings

_ENROLMENT = "AGENTCTL_IDENTITY_"


async def run(settings: Settings, credentials: Credentials | None = None) -> None:
    """Serve until SIGTERM or SIGINT. RefusedError if the credentials are no good."""
    telemetry.start("provider", settings.log_level)
    async with providing(settings, credentials):
        await stopped()


def main() -> None:
    """The command."""
    if sys.argv[1:]:
        settings_of_both = f"{describe(Settings, 'PROVIDER_')}\n{describe(Credentials, _ENROLMENT)}"
        sys.stderr.write(f"provider: configured by the environment only\n\n{settings_of_both}\n")
        sys.exit(2)
    try:
        settings = load(Settings, "PROVIDER_")
        credentials = load(Credentials, _ENROLMENT) if settings.tls else None
    except SettingsError as error:
        sys.stderr.write(f"provider: {error}\n")
        sys.exit(2)
    try:
        asyncio.run(run(settings, credentials))
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"provider: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
