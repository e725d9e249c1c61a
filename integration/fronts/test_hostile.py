"""Whatever one caller does to a front, the others are served, and the server gets its memory back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from libs.rpc.server import FrontName

from .attacks import ATTACKS, SLOW, Attack, fills_the_server
from .hostile import Damage, Siege, attackers, siege
from .interop import FRONTS

_CONNECTIONS = 20
_KEPT_MIB = 400  # by allocators, for a while; an attack's own figures are in docs/fronts.md


@pytest.fixture(scope="module")
def attacker() -> Iterator[ProcessPoolExecutor]:
    with attackers() as pool:
        yield pool


@pytest.fixture(scope="module", params=FRONTS)
def besieged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    front: FrontName = request.param
    with siege(front, tmp_path_factory.mktemp(front)) as it:
        yield it


def _name(attack: object) -> str | None:
    return getattr(attack, "__name__", None)


@pytest.mark.parametrize(
    ("attack", "size"),
    [
        *((attack, small) for attack, small, _ in ATTACKS),
        *(pytest.param(attack, large, marks=pytest.mark.hostile) for attack, _, large in ATTACKS),
        *(pytest.param(attack, size, marks=pytest.mark.hostile) for attack, size in SLOW),
    ],
    ids=_name,
)
def test_others_are_served_and_memory_returns(
    besieged: Siege, attacker: ProcessPoolExecutor, attack: Attack, size: int
) -> None:
    _check(besieged.suffer(attack, size, attacker))


@pytest.mark.parametrize("front", FRONTS)
def test_connections_have_a_limit(front: FrontName, attacker: ProcessPoolExecutor, tmp_path: Path) -> None:
    with siege(front, tmp_path, connections=_CONNECTIONS) as besieged:
        damage = besieged.suffer(fills_the_server, _CONNECTIONS + 4, attacker)
    _check(damage)
    # grpc.aio has no such limit. The bystanders have two of the connections.
    got = _CONNECTIONS + 4 if front == "grpcio" else _CONNECTIONS - 2
    assert damage.fate.startswith(f"{got} of {_CONNECTIONS + 4} ")


def _check(damage: Damage) -> None:
    print(damage)  # noqa: T201  (read it with -rP)
    assert damage.alive
    assert not damage.errors
    assert damage.served
    assert damage.memory_after < damage.memory_before + _KEPT_MIB, damage
    assert damage.descriptors_after <= damage.descriptors_before + 2, damage
