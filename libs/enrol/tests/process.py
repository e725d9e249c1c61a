"""A service as a process of its own that enrols with a plane."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from .issuer import Plane


@asynccontextmanager
async def process(
    module: str, plane: Plane, address: str, environment: Mapping[str, str]
) -> AsyncIterator[Process]:
    """Runs it while the block does; killed at the end if it is still there."""
    enrolment = {
        "AGENTCTL_IDENTITY_ADDRESS": address,
        "AGENTCTL_TOKEN_FILE": str(plane.token),
        "AGENTCTL_TRUST_DIR": str(plane.trust),
        "AGENTCTL_TLS_DIR": str(plane.folder / "tls"),
    }
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, env={**os.environ, **enrolment, **environment}, stderr=PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()
