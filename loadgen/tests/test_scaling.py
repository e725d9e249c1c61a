"""The pure parts of the scaling measurements, and one small run of real processes."""

from __future__ import annotations

import csv
import os

import pytest

from agentctl.coordination.v1 import work_pb2
from loadgen.scaling.burst import Books, Found, Point
from loadgen.scaling.crowd import Plan, measure, names, refs
from loadgen.scaling.moments import FIGURES, STEPS, Row, Wake, cells, certified_at
from loadgen.scaling.output import write_csv


def deployment(replicas, name="f"):
    return {"metadata": {"name": name}, "spec": {} if replicas is None else {"replicas": replicas}}


def pod(name="f-1", fleet="f", phase="Pending"):
    return {
        "metadata": {"name": name, "labels": {"agentctl.dev/agent": fleet}},
        "status": {"phase": phase},
    }


def woken(*seconds):
    return Wake("f", dict(zip(STEPS, seconds, strict=True)))


def test_what_watches_tell_are_the_moments_of_the_first_pod():
    wake = Wake("f")
    for seconds, (kind, thing) in enumerate(
        [
            ("Deployment", deployment(0)),
            ("Deployment", deployment(None)),
            ("Deployment", deployment(3, name="g")),
            ("Deployment", deployment(1)),
            ("Pod", pod(fleet="g", name="g-1", phase="Running")),
            ("Pod", pod()),
            ("Pod", pod(phase="Running")),
            ("Pod", pod(name="f-2", phase="Running")),
        ]
    ):
        wake.see(kind, thing, seconds)
    assert wake.at == {"replicas": 3, "pod": 5, "running": 6}
    assert wake.pod == "f-1"
    assert wake.missing == ["accepted", "active", "certified", "claimed", "acked"]


def test_steps_sum_up_to_the_whole_and_what_came_before_its_cause_took_nothing():
    wake = woken(0.010, 0.005, 0.02, 0.03, 0.1, 0.5, 0.9, 1.0)
    steps = wake.steps()
    assert steps["push"] == 0
    assert steps["scale"] == pytest.approx(0.010)
    assert sum(steps.values()) == pytest.approx(1.0)


def test_our_own_share_ends_where_others_begin():
    wake = woken(0.01, 0.02, 0.03, 0.04, 0.1, 0.5, 0.9, 1.0)
    assert wake.own(is_home=True, calls=0.002) == pytest.approx(0.042)
    assert wake.own(is_home=False, calls=0.002) == pytest.approx(0.022)


def test_an_agent_s_log_says_when_it_had_its_certificate():
    log = 'no json\n{"time": "2026-01-01T00:00:01.250Z", "message": "certified as spiffe://x/y"}\n'
    assert certified_at(log) == 1767225601.25
    with pytest.raises(LookupError):
        certified_at("it began\n")


def test_a_table_has_the_median_and_the_worst_in_milliseconds(tmp_path):
    rows = [
        Row.of("push", run, woken(0, 0, 0, 0, 0, 0, 0, total), total / 2)
        for run, total in ((1, 1), (2, 3), (3, 2))
    ]
    found = dict(zip(FIGURES, cells(rows), strict=True))
    assert (found["total"], found["own"], found["submit"]) == ("2000 (3000)", "1000 (1500)", "0 (0)")
    write_csv(rows, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        assert [line["total"] for line in csv.DictReader(file)] == ["1000.0", "3000.0", "2000.0"]


def settled(id, state=work_pb2.WORK_STATE_SUCCEEDED, attempt=1):
    return work_pb2.Item(id=id, state=state, attempt=attempt)


@pytest.mark.parametrize(
    ("items", "wrong"),
    [
        ([settled("a"), settled("b")], {}),
        ([settled("a")], {"lost": 1}),
        ([settled("a"), settled("b"), settled("a")], {"twice": 1}),
        ([settled("a"), settled("b", attempt=2)], {"retried": 1}),
        ([settled("a"), settled("b", work_pb2.WORK_STATE_DEAD)], {"failed": 1}),
    ],
)
def test_books_balance_only_if_each_item_was_done_once_and_at_first(items, wrong):
    books = Books(submitted=2)
    for item in items:
        books.note(item)
    counted = {name: getattr(books, name) for name in ("lost", "twice", "retried", "failed")}
    assert {name: count for name, count in counted.items() if count} == wrong
    assert books.balanced == (not wrong)


def test_the_peak_is_the_first_moment_with_the_most_pods():
    points = [Point(seconds, 0, 0, 0, pods) for seconds, pods in ((0, 0), (1, 5), (2, 5), (3, 1))]
    assert Found(points, Books(0), 0, 0, 0).peak.seconds == 1


def test_no_namespace_has_more_queues_than_coordination_allows():
    queues = names(2500)
    assert len(set(queues)) == 2500
    assert max(queues.count(name) for name in queues) == 1
    namespaces = [name.partition("/")[0] for name in queues]
    assert max(map(namespaces.count, set(namespaces))) <= 1000
    assert [f"{ref.namespace}/{ref.name}" for ref in refs(queues)] == list(queues)


@pytest.mark.processes
async def test_a_scaler_is_measured_idle_asked_and_under_changes(tmp_path):
    found = await measure(Plan(20, (10.0,), 3.0, os.environ, tmp_path), lambda _: None)
    streams, asked, changed = found.steps
    assert (streams.load, asked.load, changed.load) == ("streams", "HPAs ask", "10 changes/s")
    assert streams.ask_p50_ms is None
    assert asked.ask_p50_ms
    assert asked.push_p50_ms is None
    assert changed.push_p50_ms is not None
    assert changed.changes_per_second > 0
    assert all(step.scaler_millicores > 0 and step.rss_mib > 10 for step in found.steps)
