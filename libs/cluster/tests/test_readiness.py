"""Whether a component is ready, by a clock of ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from libs.cluster.readiness import Readiness
from libs.errors import InternalError, UnavailableError
from libs.testing.mesh import Mesh


class Home:
    """A cluster that says its version, or what is wrong."""

    def __init__(self):
        self.asked = 0
        self.error = None

    async def version(self):
        self.asked += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return "test"


@pytest.fixture
def identity(tmp_path):
    return Mesh(tmp_path).identity("cp/apiserver")


async def test_it_is_ready_while_the_cluster_answers_and_asks_it_now_and_then(identity):
    home: Any = Home()
    now = [0.0]
    readiness = Readiness(home, identity, lambda: now[0])
    await readiness.check()
    home.error = UnavailableError("no API server")
    now[0] = 4.0
    await readiness.check()
    assert home.asked == 1
    now[0] = 6.0
    with pytest.raises(UnavailableError, match="no API server"):
        await readiness.check()
    home.error = None
    await readiness.check()


async def test_of_many_probes_at_once_one_asks(identity):
    home: Any = Home()
    readiness = Readiness(home, identity)
    await asyncio.gather(*(readiness.check() for _ in range(100)))
    assert home.asked == 1


async def test_whatever_is_wrong_with_the_cluster_it_is_unavailable(identity):
    home: Any = Home()
    home.error = InternalError("no such certificate")
    with pytest.raises(UnavailableError, match="no such certificate"):
        await Readiness(home, identity).check()


async def test_it_is_not_ready_without_a_certificate(identity, tmp_path):
    home: Any = Home()
    with pytest.raises(UnavailableError, match="certificate"):
        await Readiness(home, replace(identity, folder=tmp_path / "none")).check()
