"""A plane that certifies whoever asks."""

from __future__ import annotations

import pytest

from .issuer import Issuer, Plane, new_authority


@pytest.fixture
def plane(tmp_path):
    return Plane(Issuer(new_authority()), tmp_path)


@pytest.fixture
async def served(plane):
    async with plane.serve() as served:
        yield served
