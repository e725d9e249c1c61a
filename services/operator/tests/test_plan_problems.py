"""What stands in the way of a plan, and that each says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.cluster.kinds import CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, SECRET
from libs.resources.names import agent_names
from services.operator.plan import contents, desired, references

from .manifests import GATEWAYS, SETTINGS, agent, config, context, fleet, plan_of, pool, servers, thing

MODEL = {"pool": "models"}
FLOW = {"configMapKeyRef": {"name": "flows", "key": "sum"}}


@pytest.mark.parametrize(
    ("what", "others", "reason", "words"),
    [
        (agent(model=MODEL), [], "UnknownModelPool", ["spec.model.pool", "models", "create it"]),
        (agent(model=MODEL | {"id": "huge"}), [pool()], "UnknownModel", ["model.id", "huge", "small, large"]),
        (agent(mcpServers=["web"]), [], "UnknownServerSet", ["spec.mcpServers", "web", "create it"]),
        (
            agent(mcpServers=["one", "two"]),
            [servers("one", "search"), servers("two", "drive", "search")],
            "DuplicateServer",
            ["one and two both have", "search", "rename"],
        ),
        (agent(mode="workflow", workflow=FLOW), [], "UnknownWorkflow", ["no ConfigMap flows", "create it"]),
        (
            agent(mode="workflow", workflow=FLOW),
            [config("flows", other="x")],
            "UnknownWorkflow",
            ["ConfigMap flows has no key sum"],
        ),
        (agent(mode="loop"), [], "RenderFailed", ["spec.loop is missing"]),
        (agent(mode="loop", loop={"interval": "soon"}), [], "RenderFailed", ["'soon'", "30s, 5m"]),
        (agent(mode="sometimes"), [], "RenderFailed", ["sometimes", "$.mode"]),
        (agent("a" * 64), [], "RenderFailed", ["64 characters", "shorten"]),
        (
            agent("a" * 53, mode="schedule", schedule={"cron": "@daily"}),
            [],
            "RenderFailed",
            ["53 characters, 52 are possible"],
        ),
        (
            fleet("f" * 52, coordinator={"template": {"image": "x"}}),
            [],
            "RenderFailed",
            [f"{'f' * 52}-coordinator has 64 characters"],
        ),
        (fleet("f" * 55), [], "RenderFailed", ["55 characters, 54 are possible"]),
        (
            fleet("f" * 53, scaling={"mode": "shard"}),
            [],
            "RenderFailed",
            ["53 characters, 52 are possible"],
        ),
        (
            fleet(template={"instruction": "i", "model": MODEL, "contract": "agentd-1"}),
            [pool()],
            "RenderFailed",
            ["spec.template.image is missing", "agentd-1"],
        ),
        (
            fleet(coordinator={"template": {"image": "x", "model": MODEL, "contract": "agentd-1"}}),
            [pool()],
            "RenderFailed",
            ["spec.coordinator.template.contract"],
        ),
        (
            fleet(coordinator={"template": {"image": "x", "model": MODEL}}),
            [],
            "UnknownModelPool",
            ["spec.coordinator.template.model.pool"],
        ),
    ],
)  # fmt: skip
def test_a_problem_says_what_to_do_and_nothing_is_applied(what, others, reason, words):
    plan = plan_of(what, *others)
    assert [problem.reason for problem in plan.problems] == [reason]
    assert all(word in plan.problems[0].message for word in words), plan.problems[0].message
    assert plan.objects == ()


PAID = {
    "models": ["small"],
    "endpoints": [{"name": "a", "url": "https://a", "credential": {"secretRef": {"name": "k", "key": "t"}}}],
}
TIGHT = {"models": ["small"], "endpoint": "https://a", "budgets": [{"per": "pool", "tokens": 1}]}
NO_SERVER = {"name": "s", "endpoint": "https://s"}


@pytest.mark.parametrize(("spec", "fields"), [(PAID, "has endpoints,"), (TIGHT, "has budgets,"),
                                              ({**PAID, **TIGHT}, "has endpoints and budgets,")])  # fmt: skip
def test_a_pool_for_the_gateway_needs_one_and_says_so_itself(spec, fields):
    models = thing(MODEL_POOL, "models", spec=spec)
    (problem,) = plan_of(agent(model=MODEL), models).problems
    (own,) = plan_of(models).problems
    assert problem.reason == own.reason == "NoModelGateway"
    assert problem.message == f"spec.model.pool: {own.message}"
    assert fields in own.message
    assert "AGENTCTL_MODEL_GATEWAY_URL" in own.message
    front = fleet(coordinator={"template": {"image": "x", "model": MODEL}})
    assert "spec.coordinator.template.model.pool: " in plan_of(front, models).problems[0].message
    for what in (agent(model=MODEL), models):
        assert plan_of(what, models, settings=GATEWAYS).problems == ()


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({"auth": {"mode": "header", "secretRef": {"name": "k", "key": "t"}}}, "s has auth,"),
        ({"tools": {"allow": []}, "arguments": {"read": {}}}, "s has tools and arguments,"),
    ],
)
def test_a_server_set_for_the_gateway_needs_one_and_says_so_itself(said, fields):
    web = thing(MCP_SERVER_SET, "web", spec={"servers": [NO_SERVER | said]})
    (problem,) = plan_of(agent(mcpServers=["web"]), web).problems
    (own,) = plan_of(web).problems
    assert problem.reason == own.reason == "NoMcpGateway"
    assert problem.message == f"spec.mcpServers: {own.message}"
    assert fields in own.message
    assert "AGENTCTL_MCP_GATEWAY_URL" in own.message
    for what in (agent(mcpServers=["web"]), web):
        assert plan_of(what, web, settings=GATEWAYS).problems == ()


def test_a_server_that_wants_nothing_to_be_shown_needs_no_gateway():
    web = thing(MCP_SERVER_SET, "web", spec={"servers": [NO_SERVER | {"auth": {"mode": "none"}}]})
    assert plan_of(agent(mcpServers=["web"]), web).problems == ()


def test_a_pool_without_an_endpoint_is_the_stand_in_or_of_no_use():
    models = thing(MODEL_POOL, "models", spec={"models": ["small"]})
    for settings in (SETTINGS, GATEWAYS):
        assert [each.reason for each in plan_of(models, settings=settings).problems] == ["NoEndpoint"]
        stands_in = replace(settings, stand_in_url="https://provider:8443/v1")
        assert plan_of(models, settings=stands_in).problems == ()


def test_a_malformed_pool_says_so():
    assert plan_of(thing(MODEL_POOL, "models", spec={"models": 7})).problems[0].reason == "RenderFailed"


def test_the_secrets_of_pools_and_servers_are_not_the_operators_to_read():
    models = thing(MODEL_POOL, "models", spec=PAID)
    plan = plan_of(agent(model=MODEL), models, settings=GATEWAYS)
    assert plan.references == ((MODEL_POOL, "models"),)


def test_all_problems_are_told_at_once():
    plan = plan_of(agent(model=MODEL, mcpServers=["web"]))
    assert [problem.reason for problem in plan.problems] == ["UnknownModelPool", "UnknownServerSet"]


def test_what_is_missing_is_watched():
    plan = plan_of(agent(model=MODEL, mcpServers=["web"]))
    assert plan.references == ((MODEL_POOL, "models"), (MCP_SERVER_SET, "web"))


def test_no_agent_lives_in_the_system_namespace():
    what = agent()
    what["metadata"]["namespace"] = SETTINGS.system_namespace
    assert [problem.reason for problem in plan_of(what).problems] == ["SystemNamespace"]


def test_without_any_image_there_is_a_problem():
    imageless = replace(context(), settings=replace(SETTINGS, agent_image=""))
    what = agent()
    del what["spec"]["image"]
    problem = desired(what, imageless).problems[0]
    assert (problem.reason, "OPERATOR_AGENT_IMAGE" in problem.message) == ("RenderFailed", True)
    assert desired(agent(), imageless).problems == ()
    foreign = replace(context([pool()]), settings=imageless.settings)
    problem = desired(agent(contract="agentd-1", model=MODEL), foreign).problems[0]
    assert (problem.reason, "OPERATOR_AGENT_IMAGE" in problem.message) == ("RenderFailed", True)


def test_without_coordination_there_are_no_shards():
    alone = replace(context(), settings=replace(SETTINGS, coordination_address=""))
    (problem,) = desired(fleet(scaling={"mode": "shard"}), alone).problems
    assert "AGENTCTL_COORDINATION_ADDRESS" in problem.message
    assert desired(fleet(), alone).problems == ()


def test_of_two_with_one_name_the_older_keeps_it():
    older, younger = agent("f"), fleet("f")
    younger["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    assert desired(older, context(namesakes=[younger])).problems == ()
    problem = desired(younger, context(namesakes=[older])).problems[0]
    assert (problem.reason, problem.message) == (
        "NameConflict",
        "Agent f has pods of the name f; give f another name",
    )


def test_a_coordinator_takes_a_name_too():
    front, older = fleet("f", coordinator={"template": {"image": "x"}}), agent("f-coordinator")
    front["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    assert agent_names(front) == {"f", "f-coordinator"}
    assert desired(front, context(namesakes=[older])).problems[0].reason == "NameConflict"
    assert desired(fleet("f"), context(namesakes=[older])).problems == ()


def test_references_are_all_that_the_pods_read():
    container = {
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
            {"name": "C", "value": "plain"},
        ],
        "envFrom": [{"configMapRef": {"name": "c2"}}, {"secretRef": {"name": "s2"}}],
    }
    volumes = [
        {"name": "v1", "configMap": {"name": "c1"}},
        {"name": "v2", "secret": {"secretName": "s3"}},
        {"name": "v3", "emptyDir": {}},
    ]
    what = agent(podTemplate={"spec": {"containers": [container], "volumes": volumes}})
    assert references(what) == (
        (CONFIG_MAP, "c1"), (SECRET, "s1"), (CONFIG_MAP, "c2"), (SECRET, "s2"), (SECRET, "s3"),
    )  # fmt: skip


def test_a_malformed_object_names_nothing():
    assert references(agent(mode=7)) == ()


def test_other_kinds_have_a_plan_of_nothing():
    plan = plan_of(pool())
    assert (plan.objects, plan.problems, plan.references) == ((), (), ())


def test_contents_change_with_what_they_hash_only():
    one, other = config("c", a="1", b="2"), config("c", b="2", a="1")
    assert contents(one) == contents(other)
    assert set(contents(one)) == {"ConfigMap/c", "ConfigMap/c/a", "ConfigMap/c/b"}
    changed = contents(config("c", a="1", b="3"))
    assert {key for key in changed if changed[key] != contents(one)[key]} == {"ConfigMap/c", "ConfigMap/c/b"}
    assert contents(thing(SECRET, "s")).keys() == {"Secret/s"}
