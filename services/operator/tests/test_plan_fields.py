"""Every declared field acts: setting it otherwise changes the plan."""

from __future__ import annotations

import copy
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec
from libs.resources.pool import PoolSpec, ServerSetSpec
from services.operator.plan import Plan, Shards
from services.operator.plan.owned import SPEC_HASH

from .manifests import (
    GATEWAYS,
    agent,
    case,
    cases,
    config,
    fleet,
    plan_of,
    plan_of_case,
    pod_of,
    pool,
    servers,
    workload_of,
)

ALL = {"Agent": AgentSpec, "AgentFleet": FleetSpec, "ModelPool": PoolSpec, "MCPServerSet": ServerSetSpec}
TEMPLATE = case("pod-template")[0]["spec"]["podTemplate"]
OTHER = {"mode": "reactive", "imagePullPolicy": "Never", "contract": "agentctl"}
MODES = {"claim": "shard", "shard": "claim"}
LENGTHS = {
    "interval", "deadline", "startingDeadline", "keepFor", "lease", "targetAge", "cooldown", "drain",
}  # fmt: skip
NAMES_OF_OTHERS = {"pool", "id", "mcpServers", "name", "key", "configMapKeyRef"}
"""Changed at random they name what is not there: the plan is then a problem, and so it should be."""
GATEWAYS_OWN = {"endpoints", "provider", "budgets", "onStoreDown", "auth", "tools", "arguments"}
"""Of pools and sets: gateways act on these, and no pod is replaced for them."""


def everything() -> list[list[Any]]:
    """Objects with what they name, which together set every field there is."""
    without_gateway = (each for each in cases() if "gateways" not in each)
    worlds = [[first, *others] for first, others in map(case, without_gateway)]
    flow = {"configMapKeyRef": {"name": "flows", "key": "sum"}}
    part = {
        "image": "x",
        "instruction": "i",
        "model": {"pool": "models", "id": "large"},
        "mcpServers": ["web"],
        "limits": {"maxTokens": 1, "maxSteps": 1, "maxDepth": 1, "deadline": "1m"},
        "podTemplate": TEMPLATE,
    }
    scaling = {"mode": "claim", "target": 3, "targetAge": "1m", "cooldown": "1m", "fallbackReplicas": 2}
    return [
        *worlds,
        [agent(mode="workflow", workflow=flow), config("flows", sum="x", other="y")],
        [fleet(template=part, coordinator={"template": part}), pool(), servers("web", "search")],
        [fleet(replicas=20, scaling={"minReplicas": 1, "maxReplicas": 10})],
        [fleet(scaling={"minReplicas": 2})],
        [fleet(scaling=scaling, work={"drain": "1m"})],
    ]


def declared(struct: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all fields, without the places in lists."""
    found = set()
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        here = (*path, field.encode_name)
        inner = [hint for hint in (hints[field.name], *get_args(hints[field.name])) if _is_struct(hint)]
        found |= declared(inner[0], here) if inner else {here}
    return found


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def leaves(known: set[tuple[str, ...]], value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of those of the fields that are set, with the places in lists."""
    if _plain(path) in known:
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [leaf for key, below in inner for leaf in leaves(known, below, (*path, key))]


def _plain(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(step for step in path if isinstance(step, str))


def otherwise(field: str, value: Any) -> Any:
    """Another value that the field may have; None: it is left out."""
    if isinstance(value, str) and value in MODES:
        return MODES[value]
    if field in OTHER and value != OTHER[field]:
        return OTHER[field]
    if field in LENGTHS:
        return "47s"
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case [*_] if field == "models":
            return ["other", *value]
    return None


def variants() -> list[Any]:
    """Each set field of each object once: (kind, path, world, the same with that field otherwise)."""
    found = []
    for world in everything():
        for place, one in enumerate(world):
            if (struct := ALL.get(one["kind"])) is None:
                continue
            for path in leaves(declared(struct), one["spec"]):
                changed = copy.deepcopy(world)
                target = changed[place]["spec"]
                for step in path[:-1]:
                    target = target[step]
                value = otherwise(path[-1], target[path[-1]])
                if value is None:
                    del target[path[-1]]
                else:
                    target[path[-1]] = value
                found.append((one["kind"], _plain(path), world, changed))
    return found


FIELDS = sorted(
    (kind, path)
    for kind, struct in ALL.items()
    for path in declared(struct)
    if path[-2:] != ("containers", "name")  # this and the next can be one word only
    if path != ("coordinator", "template", "contract")
    if not GATEWAYS_OWN & set(path)
)
VARIANTS = variants()


@pytest.mark.parametrize(
    ("kind", "path"), FIELDS, ids=lambda part: part if isinstance(part, str) else ".".join(part)
)
def test_a_field_acts(kind, path):
    tried = [(before, after) for of, where, before, after in VARIANTS if (of, where) == (kind, path)]
    assert tried, "no object of this test sets it"
    here: dict[str, Any] = {"scales": True, "shards": Shards(0, 0)}
    assert any(_acts(path[-1], plan_of(*before, **here), plan_of(*after, **here)) for before, after in tried)


def _acts(field: str, before: Plan, after: Plan) -> bool:
    assert before.problems == ()
    if after.problems:
        return field in NAMES_OF_OTHERS and "spec: " not in after.problems[0].message
    return bool(_effects(field, before) != _effects(field, after))


def _effects(field: str, plan: Plan) -> Any:
    """The plan. Without the hash of the spec, which every change changes and a new trigger nothing else."""
    objects = copy.deepcopy(plan.objects)
    for each in objects:
        if field != "trigger":
            each["metadata"]["annotations"].pop(SPEC_HASH, None)
    return objects, plan.queue


@pytest.mark.parametrize("name", ["gateways", "agentd-gateways"])
def test_what_a_gateway_acts_on_replaces_no_pod(name):
    first, (models, office) = case(name)
    before = plan_of_case(name)
    models["spec"] = {"models": models["spec"]["models"], "endpoint": "https://other.example.com/v1"}
    for server in office["spec"]["servers"]:
        server["endpoint"] = "https://other.example.com/mcp"
        for field in GATEWAYS_OWN:
            server.pop(field, None)
    assert before.problems == ()
    assert plan_of(first, models, office, settings=GATEWAYS) == before


def test_an_agent_with_tools_and_no_model_believes_its_tool_servers() -> None:
    flow = {"inline": "steps: []"}
    deployed = plan_of(agent(mode="workflow", workflow=flow, mcpServers=["web"]), servers("web", "web"))
    (container,) = pod_of(workload_of(deployed))["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["AGENT_MODEL_CA_FILE"] == "/run/agentctl/trust/ca.crt"
