"""Objects for the tests of the plan and of the status."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, SECRET, Kind
from services.operator.plan import Context, Plan, Rendering, contents, desired

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = Rendering(
    agent_image="agentctl:1.0",
    coordination_address="coordination.agentctl-system:7410",
    identity_address="operator.agentctl-system:7412",
)


def thing(kind: Kind, name: str, **rest: Any) -> Object:
    """An object as an API server would have it."""
    metadata = {"name": name, "namespace": "team-a", "uid": f"uid-{kind.name}-{name}", "generation": 1}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **rest}


def agent(name: str = "a", **spec: Any) -> Object:
    return thing(
        AGENT, name, spec={"mode": "once", "image": "example.com/x:1", "instruction": "Work."} | spec
    )


def fleet(name: str = "f", **spec: Any) -> Object:
    template = {"image": "example.com/x:1", "instruction": "Work."}
    return thing(AGENT_FLEET, name, spec={"template": template} | spec)


def pool(name: str = "models", *models: str, endpoint: str = "https://models.example.com/v1") -> Object:
    return thing(MODEL_POOL, name, spec={"endpoint": endpoint, "models": list(models or ("small", "large"))})


def servers(name: str, *names: str) -> Object:
    listed = [
        {"name": each, "endpoint": f"https://{each}.example.com/mcp", "tags": ["read"]} for each in names
    ]
    return thing(MCP_SERVER_SET, name, spec={"servers": listed})


def config(name: str, **data: str) -> Object:
    return thing(CONFIG_MAP, name, data=data)


def context(others: Iterable[Object] = (), namesakes: Iterable[Object] = ()) -> Context:
    """As the reconciler makes it, when these are there."""
    others = list(others)

    def of(kind: Kind) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in others if each["kind"] == kind.name}

    hashes: dict[str, str] = {}
    for each in others:
        if each["kind"] in (CONFIG_MAP.name, SECRET.name):
            hashes |= contents(each)
    return Context(
        SETTINGS,
        pools=of(MODEL_POOL),
        server_sets=of(MCP_SERVER_SET),
        hashes=hashes,
        namesakes=list(namesakes),
    )


def plan_of(what: Object, *others: Object) -> Plan:
    """Its plan; what it is given stays as it was."""
    before = copy.deepcopy((what, others))
    plan = desired(what, context(others))
    assert (what, others) == before
    return plan


def cases() -> list[str]:
    """The names of the golden cases."""
    return sorted(
        path.name.removesuffix(".yaml") for path in GOLDEN.glob("*.yaml") if ".plan." not in path.name
    )


def case(name: str) -> tuple[Object, list[Object]]:
    """The object of a golden case, and what else is there."""
    first, *others = yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text())
    return first, others


def pod_of(manifest: Object) -> Object:
    """The pod template in a workload; {} if it is none."""
    spec = manifest.get("spec", {})
    found: Object = spec.get("jobTemplate", {}).get("spec", spec).get("template") or {}
    return found
