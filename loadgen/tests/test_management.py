"""What is counted of reviews and verbs, and what is not; a short measurement of a real plane."""

from __future__ import annotations

import asyncio
import csv
import os
from dataclasses import fields

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from agentctl.agent.v1 import agent_service_pb2 as agent_pb
from agentctl.management.v1 import management_service_pb2 as pb
from libs.errors import UnavailableError
from libs.rpc.edge import edge
from libs.testing import ca
from loadgen.__main__ import app
from loadgen.management.command import Plan, measure, write_csv
from loadgen.management.corpus import Case, Verdict, cases
from loadgen.management.home import plane
from loadgen.management.reviews import Webhook, by_webhook, reviewed
from loadgen.management.sample import Row, Sample, closed_loop
from loadgen.management.verbs import complaint, discrepancy

NAME = "admission.agentctl-system.svc"


def review_of(uid="c", *, allowed=True, warnings=(), **notes):
    response = {"uid": uid, "allowed": allowed, "auditAnnotations": notes, "warnings": list(warnings)}
    return {"kind": "AdmissionReview", "response": response}


def case(verdict):
    return Case("c", {"kind": "Agent", "metadata": {"name": "c", "namespace": "n"}}, verdict)


# What counts


async def answered(complaint=""):
    return complaint


async def refused():
    raise UnavailableError("not now")


async def test_only_calls_that_were_answered_well_are_counted():
    sample = Sample()
    await sample.take(answered())
    await sample.take(answered("another verdict"))
    await sample.take(refused())
    row = sample.row("review", "gRPC")
    assert (row.calls, row.wrong, row.complaint) == (1, 2, "another verdict")
    assert row.p50_ms == row.max_ms is not None


async def test_nothing_answered_well_has_no_latency():
    sample = await closed_loop(2, 0.01, lambda _: refused())
    row = sample.row("review", "gRPC")
    assert (row.calls, row.calls_per_second, row.p99_ms) == (0, 0.0, None)
    assert row.wrong >= 2
    assert row.complaint.startswith("UNAVAILABLE")


async def test_so_many_callers_ask_at_once_and_their_warm_up_is_not_counted():
    underway = most = asked = 0

    async def call(number):
        nonlocal underway, most, asked
        underway, asked = underway + 1, asked + 1
        most = max(most, underway)
        await asyncio.sleep(0.001)
        underway -= 1
        return ""

    sample = await closed_loop(3, 0.05, call)
    assert most == 3
    assert 3 <= sample.latencies.total < asked
    assert sample.seconds >= 0.05


# Reviews


def test_a_verdict_that_differs_in_a_rule_is_wrong():
    asked = case(Verdict(False, frozenset({"unknown-pool"})))
    assert asked.complaint(Verdict(False, frozenset({"unknown-pool"}))) == ""
    assert "denied by schema, not denied by unknown-pool" in asked.complaint(
        Verdict(False, frozenset({"schema"}))
    )


@pytest.mark.parametrize(
    ("verdict", "answer", "is_right"),
    [
        (Verdict(True), review_of(), True),
        (Verdict(True), review_of("another"), False),
        (Verdict(True), review_of(allowed=False), False),
        (Verdict(True), {}, False),
        (Verdict(False, frozenset({"a", "b"})), review_of(allowed=False, **{"denied-by": "a,b"}), True),
        (Verdict(False, frozenset({"a"})), review_of(allowed=False, **{"denied-by": "b"}), False),
        (Verdict(True, warnings=frozenset({"w"})), review_of(warnings=["w"], **{"warned-by": "w"}), True),
        (Verdict(True, warnings=frozenset({"w"})), review_of(**{"warned-by": "w"}), False),
    ],
)
def test_an_answered_review_is_looked_at(verdict, answer, is_right):
    assert (reviewed(case(verdict), answer) == "") is is_right


def test_the_corpus_has_every_sort_of_verdict():
    verdicts = {each.name: each.verdict for each in cases("n")}
    assert {name for name, verdict in verdicts.items() if verdict == Verdict(True)} == {"fleet", "agent"}
    assert not verdicts["denied"].allowed
    assert verdicts["warned"].allowed
    assert verdicts["warned"].warnings


async def test_a_webhook_is_asked_as_an_api_server_does_over_connections_that_are_kept(tmp_path):
    seen = []

    async def validate(request):
        asked = (await request.json())["request"]
        seen.append((request.scope["http_version"], request.client.port, asked["operation"], asked["dryRun"]))
        verdict = {each.name: each.verdict for each in cases("n")}[asked["uid"]]
        notes = {"denied-by": ",".join(verdict.denials), "warned-by": ",".join(verdict.warnings)}
        said = review_of(asked["uid"], allowed=verdict.allowed, warnings=verdict.warnings, **notes)
        return JSONResponse(said)

    routes = Starlette(routes=[Route("/validate", validate, methods=["POST"])])
    identity = ca.identity(ca.authority(), tmp_path, "/cp/admission", dns_names=[NAME])
    async with edge(routes, identity) as served:
        webhook = Webhook(served.address, identity.root, NAME)
        async with by_webhook(webhook, cases("n"), 2) as call:
            assert [await call(number) for number in range(8)] == [""] * 8
        async with by_webhook(Webhook(served.address, identity.root, "other"), cases("n"), 2) as call:
            assert "certificate" in (await call(0)).lower(), "a webhook of another name is not believed"
    assert {(version, operation, dry) for version, _, operation, dry in seen} == {("1.1", "CREATE", True)}
    assert len({port for _, port, _, _ in seen}) == 1


async def test_a_webhook_that_fails_is_wrong(tmp_path):
    async def validate(_):
        return Response(status_code=500)

    routes = Starlette(routes=[Route("/validate", validate, methods=["POST"])])
    identity = ca.identity(ca.authority(), tmp_path, "/cp/admission", dns_names=[NAME])
    async with (
        edge(routes, identity) as served,
        by_webhook(Webhook(served.address, identity.root, NAME), cases("n"), 1) as call,
    ):
        assert await call(0) == "fleet: HTTP 500"


# Verbs


def outcome(pod, stage=pb.STAGE_IN_EFFECT):
    return pb.Outcome(pod=pod, pod_uid=f"uid-{pod}", stage=stage)


@pytest.mark.parametrize(
    ("outcomes", "done", "is_right"),
    [
        ([outcome("a"), outcome("b")], 2, True),
        ([outcome("a"), outcome("b", pb.STAGE_FINISHED)], 2, True),
        ([outcome("a"), outcome("b", pb.STAGE_ACCEPTED)], 1, False),
        ([outcome("a"), outcome("b", pb.STAGE_FAILED)], 1, False),
        ([outcome("a"), outcome("a")], 2, False),
        ([outcome("a"), outcome("b")], 1, False),
        ([outcome("a")], 1, False),
        ([], 0, False),
    ],
)
def test_a_verb_counts_when_every_pod_has_come_so_far(outcomes, done, is_right):
    report = pb.Report(outcomes=outcomes, done_count=done)
    assert (complaint(report, 2, pb.STAGE_IN_EFFECT) == "") is is_right


def told(pod, error="", **status):
    said = None if error else agent_pb.GetStatusResponse(**status)
    return pb.PodStatus(pod=pod, pod_uid=f"uid-{pod}", phase="Running", status=said, error=error)


@pytest.mark.parametrize(
    ("pods", "held", "is_right"),
    [
        ([told("a"), told("b")], "", True),
        ([told("a", paused=True), told("b", paused=True)], "paused", True),
        ([told("a", paused=True), told("b")], "paused", False),
        ([told("a", paused=True), told("b", lame_duck=True)], "paused", False),
        ([told("a", lame_duck=True), told("b", lame_duck=True)], "", False),
        ([told("a"), told("b", error="it does not run")], "", False),
        ([told("a")], "", False),
    ],
)
def test_a_status_counts_when_every_pod_says_what_it_was_told(pods, held, is_right):
    assert (discrepancy(pods, 2, held) == "") is is_right


# The command


def test_a_webhook_needs_its_authority():
    result = CliRunner().invoke(app, ["management", "--webhook", "127.0.0.1:1"])
    assert result.exit_code == 2


def test_rows_are_written_as_they_are(tmp_path):
    sample = Sample(seconds=1.0)
    sample.latencies.record(0.01)
    rows = [sample.row("pause", "gRPC", pods=4, until="accepted")]
    write_csv(rows, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        [line] = csv.DictReader(file)
    assert list(line) == [each.name for each in fields(Row)]
    assert (line["pods"], line["until"], line["calls_per_second"]) == ("4", "accepted", "1.0")


@pytest.mark.processes
async def test_a_real_plane_reviews_and_obeys():
    plan = Plan("load", [1, 4], [1, 2], review_seconds=0.5, verb_seconds=0.5, patience=60)
    with plane(None, os.environ) as endpoints:
        rows = await measure(plan, endpoints)
    assert [row.complaint for row in rows if row.wrong] == []
    assert [row.callers for row in rows if row.call == "review"] == [1, 4]
    found = {(row.call, row.pods, row.until) for row in rows if row.call in ("pause", "undo")}
    stages = ("accepted", "in effect")
    assert found == {(verb, pods, until) for verb in ("pause", "undo") for pods in (1, 2) for until in stages}
    assert all(row.calls and row.p50_ms for row in rows)
