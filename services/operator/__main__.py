"""Runs the operator beside a Kubernetes API server until SIGTERM."""

from __future__ import annotations

import sys

import uvloop

from libs import telemetry
from libs.cluster.kubernetes import connect
from libs.errors import MeshError
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .operating import operating
from .settings import Settings


async def run(settings: Settings) -> None:
    telemetry.start("operator", settings.log_level)
    async with (
        connect(settings.kubeconfig) as cluster,
        operating(settings, cluster) as operator,
        telemetry.plain_port(settings.metrics_port, operator.ready, settings.host),
    ):
        await stopped()


def main() -> None:
    if sys.argv[1:]:
        sys.stderr.write(f"configured by the environment only\n\n{describe(Settings, 'OPERATOR_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        uvloop.run(run(load(Settings, "OPERATOR_")))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except MeshError as error:  # the cluster, or the authority in it, could not be opened
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
