"""Builds the service from the environment and runs it until SIGTERM."""

from __future__ import annotations

import gc
import sys

import uvloop

from libs import telemetry
from libs.enrol import RefusedError
from libs.errors import UnavailableError
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .coordinating import Opener, coordinating, open_store
from .settings import Settings


async def run(settings: Settings, opener: Opener = open_store) -> None:
    telemetry.start("coordination", settings.log_level)
    async with (
        coordinating(settings, opener) as service,
        telemetry.plain_port(settings.metrics_port, service.check, settings.host),
    ):
        await stopped()


def main(opener: Opener = open_store) -> None:
    if sys.argv[1:]:
        sys.stderr.write(f"configured by the environment only\n\n{describe(Settings, 'COORDINATION_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        settings = load(Settings, "COORDINATION_")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    gc.freeze()
    # Only the young are looked through: calls leave no cycles, and a look at millions of items takes seconds.
    gc.set_threshold(10_000, 1_000_000, 1_000)
    try:
        uvloop.run(run(settings, opener))
    except (UnavailableError, RefusedError) as error:  # the store could not be opened; no certificate for us
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
