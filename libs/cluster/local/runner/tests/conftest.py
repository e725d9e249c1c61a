"""The world that the tests here run pods in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.cluster.local import open_local
from libs.cluster.local.runner import Limits, Runner

from .world import LIMITS, PYTHON, TIMEOUT, Clock, World, end_all


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
async def world(tmp_path: Path, limits: Limits) -> AsyncIterator[World]:
    clock = Clock()
    async with open_local(tmp_path) as cluster:
        environment = {"PATH": os.environ["PATH"], "WORLD": str(tmp_path)}
        runner = Runner(
            cluster,
            tmp_path,
            commands={"python": PYTHON},
            environment=environment,
            clock=clock,
            limits=limits,
        )
        running = asyncio.create_task(runner.run())
        yield World(cluster, tmp_path, clock, runner, running)
        running.cancel()
        try:
            async with asyncio.timeout(TIMEOUT):
                await asyncio.wait([running])
            if not running.cancelled():
                running.result()
        finally:
            left = await asyncio.to_thread(end_all, tmp_path)
        assert left == []
