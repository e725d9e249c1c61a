"""The webhooks over TLS, as an API server calls them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import re
import ssl
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from libs import telemetry
from libs.cluster import Bearer
from libs.errors import ExhaustedError, UnavailableError
from libs.rpc.edge import edge
from services.admission import http
from services.admission.context import Policy
from services.admission.gathering import Gatherer
from services.admission.http import MOST_BYTES, Webhooks
from services.admission.reading import OVERRIDE
from services.admission.reviewing import Question, Reviewer

from .declared import agent, pods, pool, server, server_set
from .served import asked, serving_in

SECRET_PODS = pods({"env": [{"name": "W", "valueFrom": {"secretKeyRef": {"name": "word", "key": "a"}}}]})
PATHS = pytest.mark.parametrize("path", ["/validate", "/mutate"])


@pytest.fixture(autouse=True)
def there(world):
    world.put(pool(), server_set("web", server("post", "egress", "untrusted_input")))


async def test_what_may_be_is_allowed_without_a_word(service):
    assert await service.by_webhook(
        agent(image="ghcr.io/acme/a:1", podTemplate=pods({"resources": {"limits": {}}}))
    ) == {
        "uid": "u-1",
        "allowed": True,
    }


async def test_a_denial_names_all_that_is_wrong_as_kubectl_shows_it(service):
    answer = await service.by_webhook(agent(model={"pool": "small"}, image="evil/agent:1"))
    status = answer["status"]
    assert (answer["allowed"], status["code"], status["reason"]) == (False, 422, "Invalid")
    assert "\n* spec.image 'evil/agent:1': " in status["message"]
    assert "\n* spec.model.pool 'small': " in status["message"]
    assert [(each["reason"], each["field"]) for each in status["details"]["causes"]] == [
        ("image-not-allowed", "spec.image"),
        ("unknown-pool", "spec.model.pool"),
    ]
    assert status["details"]["kind"] == "Agent"
    for cause, value in zip(status["details"]["causes"], ("evil/agent:1", "small"), strict=True):
        assert re.fullmatch(rf"'{value}': .+; .+ \({cause['reason']}\)", cause["message"])
    assert answer["auditAnnotations"]["denied-by"] == "image-not-allowed,unknown-pool"


async def test_what_only_others_may_is_forbidden(service, world):
    world.denied.add(("get", "secrets"))
    status = (await service.by_webhook(agent(podTemplate=SECRET_PODS)))["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert "may not get secrets word" in status["message"]
    [author] = world.authors
    assert (author.username, author.groups, author.extra) == (
        "jane",
        ("dev", "system:authenticated"),
        {"a": ("b",)},
    )


async def test_warnings_are_short_lines(service):
    thing = agent(
        metadata={"annotations": {OVERRIDE: "ticket 12"}}, podTemplate=SECRET_PODS, mcpServers=["web"]
    )
    answer = await service.by_webhook({**thing, "spec": {**thing["spec"], "limits": {}}})
    assert answer["allowed"]
    assert len(answer["warnings"]) == 2
    assert any("(no-deadline)" in each and len(each) <= 120 for each in answer["warnings"])
    assert all(len(each) <= 250 and "\n" not in each for each in answer["warnings"])
    assert answer["auditAnnotations"] == {"warned-by": "no-deadline,trifecta-overridden"}


async def test_an_update_is_held_against_what_was_there(service, world):
    world.denied.add(("get", "secrets"))
    old = agent(podTemplate=SECRET_PODS)
    assert (await service.by_webhook(agent(podTemplate=SECRET_PODS, instruction="b"), old))["allowed"]
    assert not (await service.by_webhook(agent(podTemplate=SECRET_PODS), agent()))["allowed"]


async def test_what_is_being_deleted_is_never_refused(service):
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]}
    old, new = (agent(metadata=leaving, image=image) for image in ("evil/a:1", "evil/b:1"))
    assert (await service.by_webhook(new, old))["allowed"]


@PATHS
@pytest.mark.parametrize(
    "said", [{"operation": "DELETE"}, {"operation": "CONNECT"}, {"subResource": "status"}]
)
async def test_other_operations_pass(service, world, path, said):
    answer = await service.by_webhook(agent(image="evil/a:1"), path=path, **said)
    assert answer == {"uid": "u-1", "allowed": True}
    assert world.asked == []


async def test_a_mutation_is_a_json_patch_and_asks_nobody(service, world):
    answer = await service.by_webhook(agent(), path="/mutate")
    assert (answer["allowed"], answer["patchType"]) == (True, "JSONPatch")
    value = {"app.kubernetes.io/part-of": "agentctl"}
    patch = [{"op": "add", "path": "/metadata/labels", "value": value}]
    assert json.loads(base64.b64decode(answer["patch"])) == patch
    again = await service.by_webhook(agent(metadata={"labels": value}), path="/mutate")
    assert again == {"uid": "u-1", "allowed": True}
    assert world.asked == []


async def test_a_dry_run_gets_the_same_verdict_and_the_audit_says_that_it_is_one(service, world, caplog):
    caplog.set_level(logging.INFO)
    bad = agent(image="evil/a:1")
    assert await service.by_webhook(bad, dryRun=True) == await service.by_webhook(bad, dryRun=False)
    lines = [vars(each).get("outcome") for each in caplog.records if each.name == "agentctl.audit.claims"]
    assert lines == ["dry run", None]


async def test_who_asks_again_and_again_floods_no_log(service, world, caplog):
    """Anybody who reaches the port may; what certified callers are denied is never left out."""
    caplog.set_level(logging.INFO)
    for _ in range(3):
        await service.by_webhook(agent(image="evil/a:1"))
        await service.by_grpc(agent(image="evil/a:1"))
    sparing = telemetry.Sparing(1)
    for line in caplog.records:
        line.created = 1.0
    passed = [line for line in caplog.records if sparing.filter(line) and hasattr(line, "decision")]
    assert [line.name for line in passed if line.name != "agentctl.audit.claims"] == ["agentctl.audit"] * 3
    assert len(passed) <= 4


async def test_what_cannot_be_looked_up_is_no_yes(service, world):
    world.down["large"] = UnavailableError("it is down")
    answer = await service.by_webhook(agent())
    status = answer["status"]
    assert (answer["allowed"], status["code"], status["reason"]) == (False, 503, "ServiceUnavailable")
    assert "ModelPool 'large' (it is down)" in status["message"]


async def test_the_answer_comes_before_the_api_server_gives_up(service, world):
    world.silent.add("large")
    answer = await service.by_webhook(agent(), path="/validate?timeout=300ms")
    assert answer["status"]["code"] == 503
    assert world.underway == 0


@PATHS
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe{}",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        json.dumps({**asked(agent()), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps({**asked(agent()), "kind": "Pod"}).encode(),
        json.dumps({**asked(agent()), "request": None}).encode(),
        json.dumps(asked(agent(), uid="")).encode(),
        json.dumps(asked(agent(), uid=5)).encode(),
        json.dumps(asked(agent(), userInfo="jane")).encode(),
        json.dumps(asked(None)).encode(),
        json.dumps(asked(agent("\ud800"))).encode(),
        json.dumps(asked([1])).encode(),
        json.dumps(asked("text")).encode(),
    ],
)  # fmt: skip
async def test_what_is_no_admission_review_is_a_bad_request(service, path, body):
    status, text = await service.post(path, body)
    assert status == 400
    assert "AdmissionReview" in text or "object" in text


@PATHS
async def test_a_body_over_the_cap_is_not_read(service, path):
    status, _ = await service.post(path, io.BytesIO(b"a" * (MOST_BYTES + 1)), expect100=True)
    assert status == 413


async def test_other_methods_and_paths_are_refused(service):
    async with service.http.get(f"https://{service.edge}/validate", ssl=service.tls) as response:
        assert response.status == 405
    assert (await service.post("/other", b"{}"))[0] == 404


async def test_it_is_alive_always_and_ready_while_the_cluster_answers(service, world):
    async def status(path):
        async with service.http.get(f"https://{service.edge}{path}", ssl=service.tls) as response:
            return response.status

    world.down["version"] = UnavailableError("it is down")
    assert [await status(path) for path in ("/healthz", "/livez", "/readyz")] == [200, 200, 503]
    world.down.clear()
    assert [await status(path) for path in ("/healthz", "/livez", "/readyz")] == [200, 200, 200]


async def test_nobody_is_believed_who_serves_it_with_another_authoritys_certificate(service):
    strict = ssl.create_default_context()
    strict.check_hostname = False
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await service.http.post(f"https://{service.edge}/validate", json=asked(agent()), ssl=strict)


async def test_reviews_beyond_the_cap_are_told_to_come_again(world):
    world.silent.add("large")
    cluster: Any = world
    reviewer = Reviewer(Gatherer(cluster, Policy()), at_once=2)
    question = Question("validate", agent(), None, Bearer("jane"), 60)
    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(reviewer.review(question)) for _ in range(2)]
        await world.reached(2)
        with pytest.raises(ExhaustedError):
            await reviewer.review(question)
        world.voice.set()
    assert all(task.result().allowed for task in first)
    assert (await reviewer.review(question)).allowed


async def test_a_full_house_is_a_429_but_fills_in_all_the_same(world, tmp_path):
    cluster: Any = world
    app = Webhooks(Reviewer(Gatherer(cluster, Policy()), at_once=0), world.version).app()
    async with (
        serving_in(tmp_path, world) as service,
        edge(app, service.mesh.identity("cp/admission")) as full,
    ):
        service.edge = full.address
        assert (await service.post("/validate", asked(agent())))[0] == 429
        assert (await service.by_webhook(agent(), path="/mutate"))["allowed"]


async def test_one_address_has_its_share_and_no_more(world, tmp_path, monkeypatch):
    monkeypatch.setattr(http, "SHARE", 1)
    world.silent.add("large")
    async with serving_in(tmp_path, world) as service:
        first = asyncio.create_task(service.by_webhook(agent()))
        await world.reached(1)
        for path in ("/validate", "/mutate"):
            assert (await service.post(path, asked(agent())))[0] == 429
        world.voice.set()
        assert (await first)["allowed"]
        assert (await service.by_webhook(agent()))["allowed"]


async def test_lines_of_a_review_say_in_which_request_and_whose(service, caplog):
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(telemetry.JsonFormatter("admission"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    sent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await service.post("/validate", asked(agent(image="evil/a:1")), headers=sent)
    [line] = [each for each in map(json.loads, caplog.text.splitlines()) if "decision" in each]
    assert (line["request_id"], line["method"]) == (trace, "/validate")
    assert line["peer"].startswith("127.0.0.1:")


async def test_a_slow_body_is_not_waited_for(world, tmp_path):
    async def slowly():
        yield b"{"
        await asyncio.Event().wait()

    cluster: Any = world
    app = Webhooks(Reviewer(Gatherer(cluster, Policy())), world.version, reading_seconds=0.05).app()
    async with serving_in(tmp_path, world) as service, edge(app, service.mesh.identity("cp/admission")) as up:
        url = f"https://{up.address}/validate"
        response = await service.http.post(url, data=slowly(), ssl=service.tls)
        assert response.status == 400
        assert "in time" in await response.text()


def number(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_reviews_are_counted_by_surface_and_verdict_and_denials_by_rule(service):
    names = [
        ("agentctl_admission_reviews_total", {"surface": "validate", "verdict": "denied"}),
        ("agentctl_admission_reviews_total", {"surface": "mutate", "verdict": "allowed"}),
        ("agentctl_admission_review_duration_seconds_count", {"surface": "validate"}),
        ("agentctl_admission_denials_total", {"rule": "image-not-allowed"}),
    ]
    before = [number(name, **labels) for name, labels in names]
    await service.by_webhook(agent(image="evil/a:1"))
    await service.by_webhook(agent(), path="/mutate")
    assert [number(name, **labels) - was for (name, labels), was in zip(names, before, strict=True)] == [
        1,
        1,
        1,
        1,
    ]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("uid", "operation", "userInfo", "object", "oldObject", "dryRun", "subResource", "kind", "name")


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    spoilt=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3),
    path=st.sampled_from(["/validate", "/mutate", "/validate?timeout=x", "/validate?timeout=-5s"]),
)
async def test_garbage_in_an_admission_review_is_answered_or_refused(service, spoilt, path):
    status, answer = await service.post(path, json.dumps(asked(agent(), **spoilt)).encode())
    assert status in (200, 400)
    if status == 200:
        assert isinstance(answer["response"]["allowed"], bool)
        assert answer["response"]["uid"] == spoilt.get("uid", "u-1")
