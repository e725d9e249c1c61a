"""A world that reviews ask, and the service in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .served import Service, World, serving_in


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(tmp_path: Path, world: World) -> AsyncIterator[Service]:
    async with serving_in(tmp_path, world, allowed_images=("ghcr.io/acme/**",)) as served:
        yield served
