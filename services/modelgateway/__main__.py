"""Runs the model gateway beside a Kubernetes API server until SIGTERM."""

from __future__ import annotations

import gc
import sys

import uvloop

from libs import telemetry
from libs.cluster.kubernetes import connect
from libs.enrol import RefusedError
from libs.errors import MeshError
from libs.rpc.server import stopped
from libs.settings import SettingsError, describe, load

from .serving import model_serving
from .settings import Settings


async def run(settings: Settings) -> None:
    telemetry.start("modelgateway", settings.log_level)
    async with (
        connect(settings.kubeconfig) as cluster,
        model_serving(settings, cluster) as service,
        telemetry.plain_port(settings.metrics_port, service.check, settings.host),
    ):
        await stopped()


def main() -> None:
    if sys.argv[1:]:
        sys.stderr.write(f"configured by the environment only\n\n{describe(Settings, 'MODELGATEWAY_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # calls leave no cycles, and looking for them is 6 % of their cost
    try:
        uvloop.run(run(load(Settings, "MODELGATEWAY_")))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (MeshError, RefusedError) as error:  # the cluster could not be opened; no certificate for us
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
