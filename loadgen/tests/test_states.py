"""Each state against the real service, small; that it looks at what it claims to look at."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from loadgen.server import Engine
from loadgen.states import backlog, faults, fresh, idle, imports, load, parked, snapshot
from loadgen.states.crew import crew
from loadgen.states.database import administrator, analysed_tables, holds_snapshot
from loadgen.states.place import Place
from loadgen.tally import Client

from .fake import fake_coordination

pytestmark = pytest.mark.processes

STORES = [Engine.MEMORY, pytest.param(Engine.POSTGRES, marks=pytest.mark.postgres)]


@pytest.fixture
def place():
    # Not under pytest's folder: nobody but its owner enters that, and root's PostgreSQL is somebody else.
    with tempfile.TemporaryDirectory(prefix="agentctl-states-") as folder:
        Path(folder).chmod(0o711)
        yield Place(Path(folder), os.environ, print)
        assert os.listdir(folder) == [], "a server left something behind"


@pytest.mark.parametrize("store", STORES)
def test_claims_are_parked_and_each_is_answered(place, store):
    (line,) = parked.measure(place, store, parked.Sizes(claims=230, seconds=0.2))
    assert line.violations == ()
    assert line.values["kib_each"] > 0
    assert [limit.text for limit in line.limits] == ["≤ 30 KiB each"], "too short for a share of a core"


@pytest.mark.parametrize("store", STORES)
def test_every_depth_of_a_backlog_is_measured_beside_the_first(place, store):
    lines = list(backlog.measure(place, store, backlog.Sizes(depths=(200, 500), calls=24)))
    assert [line.violations for line in lines] == [(), ()]
    assert [line.values["items"] for line in lines] == [200, 500]
    assert all(line.values["ratio"] > 0 and line.values["shallow_claim_ms"] > 0 for line in lines)


@pytest.mark.postgres
def test_a_snapshot_that_is_held_keeps_dead_rows(place):
    sizes = snapshot.Sizes(items=10, seconds=0.5, windows=1)
    (line,) = snapshot.measure(place, sizes)
    assert line.violations == ()
    assert all(rate > 0 for rate in (*line.values["with"], *line.values["without"]))
    assert " 0 dead rows" not in line.notes[0]


@pytest.mark.postgres
def test_a_fresh_table_is_worked_off_without_statistics_and_with(place):
    (line,) = fresh.measure(place, fresh.Sizes(items=1500, turns=3))
    assert line.violations == ()
    assert "no table was ever analysed: checked" in line.notes[0]
    assert line.values["analysed"] > 0
    assert line.values["never_analysed"] > 0


@pytest.mark.postgres
def test_statistics_and_snapshots_are_noticed(place):
    with (
        place.server(Engine.POSTGRES) as (_, server),
        administrator(server) as database,
        administrator(server) as holder,
    ):
        assert analysed_tables(database) == 0
        database.execute("analyze coordination.item")
        assert analysed_tables(database) == 1
        assert not holds_snapshot(database, holder)
        with holder.transaction():  # read committed holds none between two statements
            holder.execute("select 1")
            assert not holds_snapshot(database, holder)
        with holder.transaction():
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
            assert holds_snapshot(database, holder)


def test_an_idle_service_and_an_idle_agent(place):
    lines = list(idle.coordination(place, Engine.MEMORY, idle.Sizes(seconds=0.2)))
    assert [line.name for line in lines] == ["idle coordination", "idle agent"]
    assert all("RSS" in line.figure for line in lines)


def test_imports_of_every_program(place):
    lines = list(imports.measure(place, imports.Sizes(repeats=1)))
    assert len(lines) == 5
    assert all(line.values["modules"] > 50 and line.values["mib"] > 5 for line in lines)


def test_the_steps_of_the_ladder_are_judged_beside_their_control(place):
    lines = list(load.measure(place, [Engine.MEMORY], load.Sizes(warmup=0.1, duration=0.3), Client.GRPCIO))
    assert [line.name for line in lines] == [
        "one item per RPC, 1 client, 1 connection",
        "one item per RPC, 256 clients, 16 connections",
        "one item per RPC, 256 clients, 16 connections, claim_next",
        "one item per RPC, 256 clients, 256 connections",
        "client library, 256 clients in 4 processes",
        "batch 100 x 16 clients",
    ]
    for line in lines:
        assert line.violations == ()
        assert line.limits
        assert "checks/s" in line.control


def test_a_run_of_faults_is_met_only_when_it_is_clean():
    outcome = {"accepted": 1000, "faults": {"server-kill": 2, "cut": 1}, "violations": {}}
    clean = faults.line_of(Engine.MEMORY, outcome, clean=True)
    assert (clean.met, clean.notes) == (True, ("cut 1, server-kill 2",))
    assert "0 violations in 1,000 items under 3 faults" in clean.figure
    assert faults.line_of(Engine.MEMORY, outcome, clean=False).met is False
    assert faults.line_of(Engine.MEMORY, outcome | {"faults": {}}, clean=True).met is False, "of nothing"
    lost = faults.line_of(Engine.MEMORY, outcome | {"violations": {"lost": 3}}, clean=False)
    assert lost.violations == ("lost (3 times)",)


@pytest.mark.parametrize(
    ("cheat", "wrong"),
    [("lose", "GetQueues: ready"), ("change", "not ours, or changed"), ("not ours", "LEASE_STATUS_LOST")],
)
async def test_a_crew_notices_a_server_that_cheats(serve, cheat, wrong):
    async with serve(fake_coordination(cheat)) as target, crew(target, 1, 20) as work:
        await work.fill(30, 10)
        await work.drain(20, 10)
        lines = await work.wrong_with_backlog()
    assert wrong in "\n".join(lines)


async def test_a_crew_that_is_done_and_one_with_a_rest_balance(serve):
    async with serve(fake_coordination()) as target, crew(target, 3, 20) as work:
        await work.fill(50, 7)
        await work.drain(20, 3)
        assert (work.accepted, work.acked) == (50, 20)
        assert await work.wrong_with_backlog() == []
        assert await work.wrong_when_empty() != []
