"""AdmissionService over mTLS."""

from __future__ import annotations

import json
import logging

import pytest
from google.protobuf.struct_pb2 import Struct

from agentctl.admission.v1 import admission_service_pb2 as pb
from libs.documents import document_of, struct_of
from libs.errors import DeniedError, InvalidError, NotFoundError, UnavailableError
from services.admission.reading import OVERRIDE

from .declared import agent, pods, pool, server, server_set

SECRET_PODS = pods({"env": [{"name": "W", "valueFrom": {"secretKeyRef": {"name": "word", "key": "a"}}}]})
LETHAL = agent(podTemplate=SECRET_PODS, mcpServers=["web"])
OVERRIDDEN = agent(
    metadata={"annotations": {OVERRIDE: "ticket 12"}}, podTemplate=SECRET_PODS, mcpServers=["web"]
)
ANN = pb.Author(username="ann", groups=["dev"])


@pytest.fixture(autouse=True)
def there(world):
    world.put(pool(), server_set("web", server("post", "egress", "untrusted_input")))


async def test_a_verdict_says_all_that_is_wrong_and_what_would_mend_it(service, world):
    world.denied.add(("get", "secrets"))
    said = await service.by_grpc(
        agent(model={"pool": "small"}, image="evil/agent:1", podTemplate=SECRET_PODS)
    )
    assert not said.allowed
    assert {(each.rule, each.field) for each in said.denials} == {
        ("image-not-allowed", "spec.image"),
        ("unknown-pool", "spec.model.pool"),
        ("secret-not-yours", "spec.podTemplate.spec.containers[0].env[0].valueFrom.secretKeyRef.name"),
    }
    assert all(each.message and each.mend for each in said.denials)
    [image] = [each for each in said.denials if each.rule == "image-not-allowed"]
    assert image.value == "evil/agent:1"


async def test_what_would_be_filled_in_comes_as_a_patch(service):
    said = await service.by_grpc(agent())
    [operation] = said.patch
    assert (said.allowed, operation.op, operation.path) == (True, "add", "/metadata/labels")
    value = document_of(operation.value.struct_value)
    assert value == {"app.kubernetes.io/part-of": "agentctl"}


async def test_the_schema_is_checked_too_since_nobody_else_has(service):
    said = await service.by_grpc(agent(mode="sometimes"))
    assert [(each.rule, each.field) for each in said.denials] == [("schema", "spec.mode")]


async def test_the_author_is_the_caller(service, world):
    await service.by_grpc(agent(podTemplate=SECRET_PODS), role="user/demo.ci")
    [author] = world.authors
    assert author.username == "system:serviceaccount:demo:ci"
    assert "system:serviceaccounts:demo" in author.groups


async def test_only_the_plane_speaks_for_others(service, world):
    request = pb.ReviewRequest(object=struct_of(agent(podTemplate=SECRET_PODS)), author=ANN)
    await (await service.stub("cp/plane")).Review(request)
    assert [(each.username, each.groups) for each in world.authors] == [("ann", ("dev",))]
    with pytest.raises(DeniedError, match="only the plane"):
        await (await service.stub("user/demo.ci")).Review(request)
    request.ClearField("author")
    with pytest.raises(InvalidError, match="author"):
        await (await service.stub("cp/plane")).Review(request)


@pytest.mark.parametrize("role", ["agent", "producer/demo.ci", "cp/operator"])
async def test_who_declares_nothing_asks_nothing(service, role):
    with pytest.raises(DeniedError):
        await service.by_grpc(agent(), role=role)


async def test_a_caller_whom_no_role_can_be_bound_to_is_refused(service):
    with pytest.raises(DeniedError, match="no role can be bound"):
        await service.by_grpc(agent(), role="administrator/ann")


@pytest.mark.parametrize("old", [False, True])
async def test_a_user_learns_nothing_of_other_namespaces(service, world, old):
    elsewhere = agent(metadata={"namespace": "other"})
    with pytest.raises(NotFoundError):
        await service.by_grpc(*((agent(), elsewhere) if old else (elsewhere,)), role="user/demo.ci")
    assert world.asked == []


async def test_an_object_over_a_mebibyte_is_refused(service, world):
    with pytest.raises(InvalidError, match="bytes"):
        await service.by_grpc(agent(instruction="a" * 2**20))
    with pytest.raises(InvalidError, match="old_object"):
        await service.by_grpc(agent(), agent(instruction="a" * 2**20))
    assert world.asked == []


async def test_what_cannot_be_looked_up_lets_nothing_through(service, world):
    world.down["large"] = UnavailableError("it is down")
    with pytest.raises(UnavailableError, match="ModelPool 'large'"):
        await service.by_grpc(agent())


async def test_no_object_at_all_is_judged_like_any_other(service):
    said = await (await service.stub()).Review(pb.ReviewRequest(object=Struct()))
    assert said.allowed  # no rule is about it


def audited(caplog):
    return [
        {
            name: vars(each).get(name)
            for name in ("event", "who", "what", "target", "decision", "outcome", "reason")
        }
        for each in caplog.records
        if each.name == "agentctl.audit"
    ]


async def test_denials_and_overrides_are_audited(service, world, caplog):
    caplog.set_level(logging.INFO)
    stub = await service.stub("cp/plane")
    for thing, dry_run in ((agent(), False), (LETHAL, False), (OVERRIDDEN, False), (OVERRIDDEN, True)):
        await stub.Review(pb.ReviewRequest(object=struct_of(thing), author=ANN, dry_run=dry_run))
    world.denied.add(("override", "agents"))
    said = await service.by_grpc(OVERRIDDEN)  # who asks, only asks
    assert [each.rule for each in said.denials] == ["trifecta"]
    about = {"what": "create", "target": "demo/Agent/scout"}
    denied = {"event": "admission-denial", **about, "decision": "denied", "reason": "trifecta"}
    overridden = {"event": "admission-override", **about, "decision": "allowed", "reason": "ticket 12"}
    root = "system:serviceaccount:agentctl-system:root"
    assert audited(caplog) == [
        {**denied, "who": "ann", "outcome": None},
        {**overridden, "who": "ann", "outcome": None},
        {**overridden, "who": "ann", "outcome": "dry run"},
        {**denied, "who": root, "outcome": "dry run"},
    ]


async def test_each_review_is_one_line_of_the_log(service, caplog):
    caplog.set_level(logging.INFO)
    await service.by_grpc(agent(image="evil/a:1"))
    [line] = [each for each in caplog.records if each.name == "services.admission.reviewing"]
    said = {name: vars(line)[name] for name in ("surface", "verdict", "rules", "who", "object", "dry_run")}
    assert json.loads(json.dumps(said)) == {
        "surface": "grpc",
        "verdict": "denied",
        "rules": ["image-not-allowed"],
        "who": "system:serviceaccount:agentctl-system:root",
        "object": "demo/Agent/scout",
        "dry_run": True,
    }
