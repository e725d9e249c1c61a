"""A home in a folder of its own, and a clock that one can turn."""

from __future__ import annotations

import pytest

from libs.cluster.local import open_local
from libs.cluster.local.tests.things import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home"


@pytest.fixture
async def cluster(folder, clock):
    async with open_local(folder, clock=clock) as opened:
        yield opened
