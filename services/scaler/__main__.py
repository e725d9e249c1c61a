"""Builds the service from the environment and runs it until SIGTERM."""

from __future__ import annotations

import sys

import uvloop

from libs import telemetry
from libs.enrol import RefusedError
from libs.errors import UnavailableError
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .scaling import scaling
from .settings import Settings


async def run(settings: Settings) -> None:
    telemetry.start("scaler", settings.log_level)
    async with (
        scaling(settings) as service,
        telemetry.plain_port(settings.metrics_port, service.check, settings.host),
    ):
        await stopped()


def main() -> None:
    if sys.argv[1:]:
        sys.stderr.write(f"configured by the environment only\n\n{describe(Settings, 'SCALER_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        settings = load(Settings, "SCALER_")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    try:
        uvloop.run(run(settings))
    except (UnavailableError, RefusedError) as error:  # no certificate for us
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
