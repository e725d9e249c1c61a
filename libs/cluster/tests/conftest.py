"""A clock, a world and a way to it."""

from __future__ import annotations

import pytest

from .clock import Clock
from .fake import FakeCluster, World


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def world():
    return World()


@pytest.fixture
async def fake(world):
    return FakeCluster(world)
