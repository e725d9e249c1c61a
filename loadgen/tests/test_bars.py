from __future__ import annotations

from dataclasses import replace

from loadgen.bars import judge
from loadgen.row import Row
from loadgen.tally import Mode, Step

STEP = Step(Mode.SINGLE, clients=256, connections=16, processes=4)
ROW = Row(
    store="memory",
    step=STEP,
    cycles_per_second=5000,
    rpcs_per_second=15000,
    latencies_ms={"submit": (10, 20, 30), "claim": (10, 20, 49), "ack": (10, 20, 30)},
    errors={},
    generator_us_per_rpc=60,
    generator_us_per_cycle=180,
    server_us_per_rpc=61,
)


def verdicts(row, rows=()):
    return {judgement.text: judgement.met for judgement in judge(row, rows)}


def test_each_limit_is_judged_by_itself_and_the_worst_verb_counts():
    assert verdicts(ROW) == {
        "≥ 4,500/s (goal 9,000)": True,
        "p99 ≤ 50 ms": True,
        "server ≤ 60 µs/RPC": False,
    }
    assert not verdicts(replace(ROW, latencies_ms={"claim": (1, 2, 51)}))["p99 ≤ 50 ms"]


def test_postgres_is_held_to_twice_the_latency_of_memory_under_the_same_load():
    row = replace(ROW, store="postgres", step=replace(STEP, queue="another"), cycles_per_second=2999)
    assert verdicts(row, [ROW]) == {"≥ 3,000/s (goal 4,800)": False, "p99 ≤ 98 ms": True}
    assert verdicts(row, []) == {"≥ 3,000/s (goal 4,800)": False}


def test_other_loads_have_other_bars_or_none():
    assert verdicts(replace(ROW, step=replace(STEP, connections=256)))["≥ 3,000/s"]
    assert verdicts(replace(ROW, step=replace(STEP, claim_next=True)))["≥ 6,500/s (goal 9,000)"] is False
    assert verdicts(replace(ROW, step=replace(STEP, clients=64))) == {}
    assert verdicts(replace(ROW, store="remote")) == {}


def test_a_row_without_latencies_keeps_no_limit_on_them():
    assert not verdicts(replace(ROW, latencies_ms={}))["p99 ≤ 50 ms"]
