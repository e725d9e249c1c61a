"""The aggregated API over real TLS: what is asked, and how each answer is said."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta

import pytest
from hpack import Encoder
from hyperframe.frame import HeadersFrame

from libs import telemetry
from libs.cluster.local import open_local
from libs.errors import (
    ConflictError,
    DeadlineError,
    DeniedError,
    ExhaustedError,
    ExistsError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.places import Places
from libs.testing import h2
from libs.testing.mesh import Mesh
from services.apiserver import http
from services.apiserver.verbs import Kind, Order, Outcome, Report, Stage, Target, Verb

from .edges import BASE, DRAIN, PATIENCE, TOKEN, Kube, Manager, ask, served

WRITER = Target(Kind.AGENT, "demo", "writer")
BOTH = pytest.mark.parametrize("version", ["1.1", "2"])


@pytest.fixture
async def kube(tmp_path):
    async with open_local(tmp_path / "home") as inner:
        yield Kube(inner)


@pytest.fixture
def management():
    return Manager(report("IN_EFFECT", "IN_EFFECT"))


@pytest.fixture
async def edge(tmp_path, kube, management):
    async with served(Mesh(tmp_path), kube, management) as edge:
        yield edge


def report(*stages, until=Stage.ACCEPTED, reason="UNAVAILABLE"):
    return Report(
        [
            Outcome(f"writer-{number}", f"uid-{number}", Stage[stage], reason if stage == "FAILED" else "")
            for number, stage in enumerate(stages)
        ],
        until,
    )


def post(edge, path=DRAIN, body=b"", version="1.1", **headers):
    return ask(edge, "POST", path, {**TOKEN, **headers}, body=body, version=version)


@BOTH
async def test_an_empty_body_is_an_order_with_the_usual_terms(edge, management, version):
    said = await post(edge, version=version)
    assert said.code == 200
    assert said.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "message": "drain demo/writer: 2 of 2 pods took it",
        "details": {"name": "writer", "group": "management.agentctl.dev", "kind": "agents"},
        "code": 200,
    }
    [(bearer, order, within)] = management.asked
    assert bearer.username == "system:serviceaccount:demo:ci"
    assert order == Order(Verb.DRAIN, WRITER)
    assert within == float("inf")


@BOTH
async def test_terms_are_in_the_body(edge, management, version):
    body = {"reason": "upgrade", "deadline": "1m30s", "until": "finished", "pod": "writer-0", "grace": "20s"}
    assert (await post(edge, body=json.dumps(body).encode(), version=version)).code == 200
    assert management.asked[0][1] == Order(
        Verb.DRAIN,
        Target(Kind.AGENT, "demo", "writer", "writer-0"),
        "upgrade",
        until=Stage.FINISHED,
        deadline=timedelta(seconds=90),
        grace=timedelta(seconds=20),
    )


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("verb", list(Verb))
async def test_every_verb_has_a_path_of_each_kind(edge, management, kind, verb):
    body = {Verb.DRAIN: {}, Verb.LAME_DUCK: {"undo": True}}.get(verb, {"run": "r-1"})
    path = f"{BASE}/namespaces/demo/{kind}/writer/{verb}"
    assert (await post(edge, path, json.dumps(body).encode())).code == 200
    order = management.asked[0][1]
    assert (order.verb, order.target.kind, order.run_id) == (verb, kind, body.get("run", ""))
    assert order.undo is body.get("undo", False)


async def test_a_dry_run_and_a_timeout_are_in_the_query(edge, management):
    management.report = report("WOULD", "WOULD")
    said = await post(edge, f"{DRAIN}?dryRun=All&timeout=5s")
    assert said.json["message"] == "drain demo/writer: 2 of 2 pods would be asked"
    _, order, within = management.asked[0]
    assert (order.dry_run, within) == (True, 5.0)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("dryRun=None", "dryRun"),
        ("dryRun=", "dryRun"),
        ("dryrun=All", "dryrun"),
        ("timeout=soon", "timeout"),
        ("pod=writer-0", "pod"),
        ("run=r-1", "run"),
    ],
)
async def test_a_query_that_nobody_understands_is_no_order(edge, management, query, field):
    said = await post(edge, f"{DRAIN}?{query}")
    assert (said.code, said.json["reason"]) == (422, "Invalid")
    [cause] = said.json["details"]["causes"]
    assert (cause["field"], cause["reason"]) == (field, "FieldValueInvalid")
    assert management.asked == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"until": "done"}', 400),
        (b'{"dryRun": ["All"]}', 400),
        (b'{"undo": "yes"}', 400),
        (b"\xff", 400),
        (b'{"reason": "\xff"}', 400),
        (b'{"reason": "\\ud800"}', 400),
        (b"[" * 60_000, 400),
        (b'{"a":' * 12_000, 400),
        (b'{"deadline": "soon"}', 422),
        (b'{"grace": "-1s"}', 422),
        (b'{"grace": ""}', 422),
        (b'{"deadline": ""}', 422),
        (b'{"pod": ""}', 422),
        (b'{"run": ""}', 422),
        (b'{"deadline": "999999999h999999999h999999999h9h9h"}', 422),
    ],
)
async def test_a_body_that_nobody_understands_is_no_order(edge, management, body, code):
    assert (await post(edge, body=body)).code == code
    assert management.asked == []


@pytest.mark.parametrize("size", [http.MAX_BODY_BYTES + 1, 2 * http.MAX_BODY_BYTES])
async def test_a_body_over_the_cap_is_refused(edge, management, size):
    said = await post(edge, body=b" " * size)
    assert (said.code, said.json["reason"]) == (413, "RequestEntityTooLarge")
    assert management.asked == []
    assert (await post(edge, body=b" " * http.MAX_BODY_BYTES)).code == 200


@BOTH
@pytest.mark.parametrize(
    ("outcomes", "code", "reason"),
    [
        (report("ACCEPTED", "FAILED"), 207, "PartialFailure"),
        (report("FAILED", "FAILED"), 502, "BadGateway"),
        (report("FAILED", "FAILED", reason="DEADLINE"), 504, "Timeout"),
        (report("ACCEPTED", "FAILED", until=Stage.FINISHED, reason="DEADLINE"), 504, "Timeout"),
    ],
)
async def test_pods_that_did_not_do_it_are_named(edge, management, outcomes, code, reason, version):
    management.report = outcomes
    said = await post(edge, version=version)
    assert (said.code, said.json["code"]) == (code, code)
    assert (said.json["status"], said.json["reason"]) == ("Failure", reason)
    causes = said.json["details"]["causes"]
    assert [cause["field"] for cause in causes] == [f"pods[{each.pod}]" for each in outcomes.missing]
    assert causes[-1]["reason"] == outcomes.outcomes[-1].reason
    assert "writer-1: " in said.json["message"]


async def test_a_message_names_a_few_pods_and_the_causes_all(edge, management):
    management.report = report("ACCEPTED", *["FAILED"] * 10)
    said = (await post(edge)).json
    assert said["message"].endswith("; and 7 more")
    assert len(said["details"]["causes"]) == 10


class StrangeError(MeshError):
    """Of no class that has a code."""


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidError("no"), 400, "BadRequest"),
        (InvalidError(violations={"grace": "not negative"}), 422, "Invalid"),
        (DeniedError("no"), 403, "Forbidden"),
        (NotFoundError("no"), 404, "NotFound"),
        (ConflictError("no"), 409, "Conflict"),
        (ExistsError("no"), 409, "AlreadyExists"),
        (PreconditionError("no"), 409, "Conflict"),
        (ExhaustedError("no"), 429, "TooManyRequests"),
        (UnimplementedError("no"), 501, "NotImplemented"),
        (UnavailableError("no"), 503, "ServiceUnavailable"),
        (DeadlineError("no"), 504, "Timeout"),
        (InternalError("no"), 500, "InternalError"),
        (StrangeError("no"), 500, "InternalError"),
    ],
)
async def test_each_error_is_a_status(edge, management, error, code, reason):
    management.error = error
    said = await post(edge)
    assert (said.code, said.json["code"], said.json["reason"]) == (code, code, reason)
    assert (said.json["kind"], said.json["status"], said.json["message"]) == ("Status", "Failure", str(error))
    assert said.json["details"]["name"] == "writer"
    assert said.headers.get("retry-after") == ("1" if code in (429, 503) else None)


async def test_a_wrong_field_goes_by_its_name_in_a_body(edge, management):
    management.error = InvalidError(violations={"run_id": "is none", "grace": "not negative"})
    said = (await post(edge)).json
    assert said["message"] == "run: is none; grace: not negative"
    assert [each["field"] for each in said["details"]["causes"]] == ["run", "grace"]


async def test_what_nobody_expected_is_logged_with_its_traceback_and_not_told(edge, management, caplog):
    management.error = ZeroDivisionError("a secret")
    said = await post(edge)
    assert (said.code, said.json["reason"], said.json["message"]) == (500, "InternalError", "internal error")
    [line] = [each for each in caplog.records if each.exc_info]
    assert line.exc_info[0] is ZeroDivisionError
    management.error = None
    assert (await post(edge)).code == 200


@BOTH
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/metrics",
        "/apis/other",
        f"{BASE}/namespaces",
        f"{DRAIN}/",
        f"{BASE}/namespaces/demo/agents/writer",
        f"{BASE}/namespaces/demo/agents/writer/explode",
        f"{BASE}/namespaces/demo/modelpools/writer/drain",
        f"{BASE}/namespaces/demo/agents/writer%2Fdrain",
        f"{BASE}/namespaces/demo%2Fagents%2Fwriter/drain",
        f"{BASE}/namespaces/demo/agents/wr%69ter/drain",
    ],
)
async def test_an_unknown_path_is_a_status_too(edge, management, path, version):
    said = await post(edge, path, version=version)
    assert (said.code, said.json["kind"], said.json["reason"]) == (404, "Status", "NotFound")
    assert management.asked == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", DRAIN, "POST"),
        ("DELETE", DRAIN, "POST"),
        ("POST", f"{BASE}/namespaces/demo/agents/writer/status", "GET"),
        ("POST", "/apis", "GET"),
    ],
)
async def test_another_method_is_a_status_that_says_which(edge, management, method, path, allowed):
    said = await ask(edge, method, path, TOKEN)
    assert (said.code, said.json["reason"]) == (405, "MethodNotAllowed")
    assert allowed in said.headers["allow"]
    assert management.asked == []


@BOTH
async def test_a_status_is_asked_for_with_get(edge, management, version):
    path = f"{BASE}/namespaces/demo/agentfleets/crew/status?pod=crew-0"
    said = await ask(edge, "GET", path, TOKEN, version=version)
    assert said.json == {
        "kind": "AgentStatus",
        "apiVersion": "management.agentctl.dev/v1alpha1",
        "metadata": {"namespace": "demo", "name": "crew"},
        "pods": [],
    }
    [(_, target, _)] = management.asked
    assert target == Target(Kind.FLEET, "demo", "crew", "crew-0")


async def test_the_status_of_an_empty_pod_is_not_that_of_all(edge, management):
    said = await ask(edge, "GET", f"{BASE}/namespaces/demo/agentfleets/crew/status?pod=", TOKEN)
    assert (said.code, management.asked) == (422, [])


async def test_probes_need_no_name(edge):
    for path in ("/healthz", "/livez"):
        assert (await ask(edge, "GET", path)).body == b"ok"


async def test_more_at_once_than_its_share_is_told_to_come_again_and_costs_others_nothing(edge, management):
    management.places = Places(3, 2)
    management.hold = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(post(edge)) for _ in range(2)]
        await asked(management, 2)
        said = await post(edge)
        assert (said.code, said.json["reason"]) == (429, "TooManyRequests")
        assert said.headers["retry-after"] == "1"
        held.append(group.create_task(post(edge, Authorization="Bearer good bob")))
        await asked(management, 3)
        assert (await post(edge, Authorization="Bearer good eve")).code == 429
        assert (await ask(edge, "GET", "/livez")).code == 200
        management.hold.set()
        assert {(await each).code for each in held} == {200}
        assert (await post(edge)).code == 200


async def asked(management, count):
    async with asyncio.timeout(PATIENCE):
        while True:
            if len(management.asked) >= count:
                return
            await asyncio.sleep(0.01)


async def test_an_order_that_hangs_ends_in_time(edge, management, monkeypatch):
    monkeypatch.setattr(http, "_MARGIN_SECONDS", 0.1)
    management.hold = asyncio.Event()
    said = await post(edge, f"{DRAIN}?timeout=200ms")
    assert (said.code, said.json["reason"]) == (504, "Timeout")
    assert management.gone.is_set()


async def test_who_leaves_is_not_worked_for_any_longer_and_is_no_error_of_ours(edge, management, caplog):
    management.hold = asyncio.Event()
    fields = [(":method", "POST"), (":scheme", "https"), (":path", DRAIN), (":authority", "test")]
    frame = HeadersFrame(1, Encoder().encode([*fields, ("authorization", "Bearer good")]))
    frame.flags.add("END_HEADERS")
    frame.flags.add("END_STREAM")
    with await asyncio.to_thread(h2.Connection, edge.port, None) as connection:
        connection.say(h2.PREFACE + frame.serialize())
        await asked(management, 1)
        connection.say(h2.reset(1))
        await management.gone.wait()
    assert (await ask(edge, "GET", "/livez")).code == 200
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_each_request_is_one_line_with_the_callers_trace(edge, management, caplog):
    caplog.set_level("DEBUG", logger="libs.rpc.edge")
    caplog.handler.setFormatter(telemetry.JsonFormatter("apiserver"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    await post(edge, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    lines = [json.loads(line) for line in caplog.text.splitlines() if "/drain: 200" in line]
    assert [(each["request_id"], each["caller"], each["code"]) for each in lines] == [
        (trace, "system:serviceaccount:demo:ci", 200)
    ]
    assert lines[0]["method"] == DRAIN.replace("demo", "{namespace}").replace("writer", "{name}")
