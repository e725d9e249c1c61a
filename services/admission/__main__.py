"""`agentctl-admission`: the service, by the environment, until SIGTERM; `validate` judges files instead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import Settings


async def run(settings: Settings) -> None:
    from libs import telemetry
    from libs.cluster.kubernetes import connect
    from libs.rpc.server import stopped

    from .admitting import admitting

    telemetry.start("admission", settings.log_level)
    async with (
        connect(settings.kubeconfig) as cluster,
        admitting(settings, cluster) as service,
        telemetry.plain_port(settings.metrics_port, service.check, settings.host),
    ):
        await stopped()


def main() -> None:
    """The command. What only the service needs is imported for it alone: a pipeline waits for `validate`."""
    if sys.argv[1:2] == ["validate"]:
        from .validate import main as validate

        sys.exit(validate(sys.argv[2:]))
    from libs.settings import SettingsError, describe, load

    from .settings import Settings

    if sys.argv[1:]:
        sys.stderr.write(
            "configured by the environment only; or see: agentctl-admission validate --help\n\n"
            f"{describe(Settings, 'ADMISSION_')}\n"
        )
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        settings = load(Settings, "ADMISSION_")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    import uvloop

    from libs.enrol import RefusedError
    from libs.errors import UnavailableError

    try:
        uvloop.run(run(settings))
    except (SettingsError, UnavailableError, RefusedError) as error:  # no cluster, or no certificate for us
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
