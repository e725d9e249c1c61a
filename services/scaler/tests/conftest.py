"""A scaler whose picture a test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.testing.mesh import Mesh, mesh

from .served import Keda, Plane, plane


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Mesh]:
    with mesh(tmp_path) as made:
        yield made


@pytest.fixture
async def scaler(certified: Mesh) -> AsyncIterator[Plane]:
    async with plane(certified) as served:
        yield served


@pytest.fixture
async def keda(scaler: Plane) -> Keda:
    return await scaler.caller()
