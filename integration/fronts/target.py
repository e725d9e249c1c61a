"""A process that serves probes by one front, to be attacked: `python -m integration.fronts.target`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import uvloop

from libs.identity import Identity
from libs.mesh import COORDINATION
from libs.rpc.boundary import Limits
from libs.rpc.server import FrontName, serving, stopped

from .probe import CALLERS, Probe


async def _serve(front: FrontName, folder: Path, limits: Limits) -> None:
    identity = Identity(folder)
    async with serving(
        COORDINATION, identity, Probe().register, front=front, limits=limits, callers=CALLERS
    ) as served:
        sys.stdout.write(f"{served.port}\n")
        sys.stdout.flush()
        await stopped()


def main() -> None:
    """Arguments: front, folder of the certificate, connections allowed."""
    front, folder, connections = sys.argv[1:]
    limits = Limits(max_connections=int(connections), drain_seconds=2.0)
    uvloop.run(_serve(cast("FrontName", front), Path(folder), limits))


if __name__ == "__main__":
    main()
