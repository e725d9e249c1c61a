"""Objects for the tests of the plan and of the status."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, SECRET, Kind
from services.operator.plan import Context, Plan, Rendering, Shards, contents, desired

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = Rendering(
    agent_image="agentctl:1.0",
    coordination_address="coordination.agentctl-system:7410",
    identity_address="operator.agentctl-system:7412",
    scaler_address="scaler.agentctl-system.svc:7417",
)
GATEWAYS = replace(
    SETTINGS,
    model_gateway_url="https://modelgateway.agentctl-system.svc:8443/v1",
    mcp_gateway_url="https://mcpgateway.agentctl-system.svc:8444",
)
_AROUND: dict[str, dict[str, Any]] = {
    "agentd-gateways": {"settings": GATEWAYS},
    "gateways": {"settings": GATEWAYS},
    "fleet-scaled": {"scales": True},
    "fleet-shards": {"shards": Shards(3, 7)},
}
"""What there is besides, in golden cases where it matters."""


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


def context(others: Iterable[Object] = (), namesakes: Iterable[Object] = (), **more: Any) -> Context:
    """As the reconciler makes it, when these are there, and `more` of a Context."""
    others = list(others)

    def of(kind: Kind) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in others if each["kind"] == kind.name}

    hashes: dict[str, str] = {}
    for each in others:
        if each["kind"] in (CONFIG_MAP.name, SECRET.name):
            hashes |= contents(each)
    return Context(
        more.pop("settings", SETTINGS),
        pools=of(MODEL_POOL),
        server_sets=of(MCP_SERVER_SET),
        hashes=hashes,
        namesakes=list(namesakes),
        **more,
    )


def plan_of(what: Object, *others: Object, **more: Any) -> Plan:
    """Its plan; what it is given stays as it was. `more`: of the Context."""
    before = copy.deepcopy((what, others))
    plan = desired(what, context(others, **more))
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


def plan_of_case(name: str) -> Plan:
    """The plan of a golden case."""
    first, others = case(name)
    return plan_of(first, *others, **_AROUND.get(name, {}))


def one_of(plan: Plan, kind: Kind, name: str = "") -> Object:
    """The one object of this kind in the plan, or the one of this name."""
    (found,) = [
        each for each in plan.objects if each["kind"] == kind.name and name in ("", each["metadata"]["name"])
    ]
    return found


def workload_of(plan: Plan) -> Object:
    """The one object of the plan that runs pods."""
    (found,) = [each for each in plan.objects if pod_of(each)]
    return found


def lived(manifest: Object, **more: Any) -> Object:
    """As an API server keeps it: with defaults, and without what is empty."""
    live = copy.deepcopy(manifest)
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if template := pod_of(live):
        template["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        template["spec"]["containers"][0]["terminationMessagePolicy"] = "File"
        if not template["metadata"]["annotations"]:
            del template["metadata"]["annotations"]
    return live | more


def pod_of(manifest: Object) -> Object:
    """The pod template in a workload; {} if it is none."""
    spec = manifest.get("spec", {})
    found: Object = spec.get("jobTemplate", {}).get("spec", spec).get("template") or {}
    return found
