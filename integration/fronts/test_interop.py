"""Whatever client asks whatever front, it hears the same; what differs is known, with its reason."""

from __future__ import annotations

import pytest

from libs.testing.mesh import Mesh

from .cases import CASES, LONG, Case
from .clients import Client
from .interop import FRONTS, answers, clients, row


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def using(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Client], str]:
    return clients(tmp_path_factory.mktemp("goclient"))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    return Mesh(tmp_path_factory.mktemp("mesh"))


def test_grpc_go_is_among_the_clients(using: tuple[list[Client], str]) -> None:
    _, missing = using
    if missing:
        pytest.skip(f"grpc-go is not tested: {missing}")


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.hostile) for case in LONG)],
    ids=lambda case: case.name,
)
async def test_every_client_hears_the_same(mesh: Mesh, using: tuple[list[Client], str], case: Case) -> None:
    every, missing = using
    cells = await row(mesh, every, case)
    if missing and not cells:
        pytest.skip(f"only grpc-go says this: {missing}")
    assert all(len(answers(cells, front)) == 1 for front in FRONTS), cells
    assert (len(answers(cells)) > 1) == bool(case.differs), cells
