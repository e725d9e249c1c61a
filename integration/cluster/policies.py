"""The NetworkPolicies, written from the mesh table: `python -m integration.cluster.policies`.

Default deny for the control plane and for agents; then each flow that the table allows, and the few that are
not of the mesh: DNS, the API server, PostgreSQL, metrics. Probes come from the node, which policies let pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from libs.mesh import (
    ADMISSION,
    AGENT,
    ANONYMOUS,
    APISERVER,
    COORDINATION,
    IDENTITY,
    MCP_GATEWAY,
    METHODS,
    MODEL_GATEWAY,
    OPERATOR,
    SCALER,
    Component,
)

Json = dict[str, Any]

_K8S = Path(__file__).parents[2] / "k8s"
FILES = {
    _K8S / "components/network-policies/policies.yaml": lambda: _system(),
    _K8S / "tenant/network-policies/policies.yaml": lambda: _tenant(),
}
"""Each generated file, and what makes its policies."""

_HEADER = "# Written by `python -m integration.cluster.policies` from libs/mesh.py.\n"
_NAMESPACE = "agentctl-system"
_SERVED = {  # what the package is called
    "coordination": COORDINATION, "operator": OPERATOR, "identity": IDENTITY, "management": APISERVER,
    "admission": ADMISSION, "externalscaler": SCALER, "modelgateway": MODEL_GATEWAY,
    "mcpgateway": MCP_GATEWAY,
}  # fmt: skip
_PACKAGES = _SERVED | {"agent": AGENT}
_IN_PLANE = {
    "admission",
    "apiserver",
    "coordination",
    "mcpgateway",
    "modelgateway",
    "operator",
    "provider",
    "scaler",
}  # one pod has them all in the overlay single
_KEDA = "cp/keda"  # lives in a namespace of its own
_ASKING = ("admission", "apiserver", "mcpgateway", "modelgateway", "operator", "postgres")  # the API server
_AGENT: Json = {"app.kubernetes.io/name": "agent", "app.kubernetes.io/part-of": "agentctl"}
_CLIENT: Json = {"agentctl.dev/client": "true"}
_OURS: Json = {"app.kubernetes.io/part-of": "agentctl"}
_PROMETHEUS: Json = {"app.kubernetes.io/name": "prometheus"}
_POSTGRES, _PROVIDER, _METRICS = 5432, 8445, (9090, 9091)
_API_SERVER, _MODELS = (443, 6443), (443,)
EDGES = {"apiserver": 6443, "admission": 9443}
"""HTTPS for the cluster's API server, which is no pod and may come from anywhere. They judge each caller."""
GATEWAYS = {"modelgateway": 8443, "mcpgateway": 8444}
"""HTTPS for agents, and for whoever else may ask."""


def _components(names: Iterable[str]) -> Json:
    """The pods of these components, alone or in a plane."""
    wanted = set(names)
    values = sorted(wanted | ({"plane"} if wanted & _IN_PLANE else set()))
    return {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "In", "values": values}]}


def _anywhere(labels: Json) -> Json:
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}


def _system_pods(names: Iterable[str]) -> Json:
    home = {"matchLabels": {"kubernetes.io/metadata.name": _NAMESPACE}}
    return {"namespaceSelector": home, "podSelector": _components(names)}


def _ports(*numbers: int, protocols: tuple[str, ...] = ("TCP",)) -> list[Json]:
    return [{"protocol": protocol, "port": number} for number in numbers for protocol in protocols]


_DNS: Json = {"ports": _ports(53, protocols=("UDP", "TCP"))}


def _policy(name: str, pods: Json, **rules: list[Json]) -> Json:
    """Of no namespace yet. `rules`: ingress and egress; what is named counts, and an empty list allows
    nothing."""
    spec: Json = {"podSelector": pods, "policyTypes": [each.capitalize() for each in rules]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": _OURS},
        "spec": spec | {direction: each for direction, each in rules.items() if each},
    }


def callers(component: Component) -> set[str]:
    """The roles that some method of the component's own services lets in."""
    roles: set[str] = set()
    for method, allowed in METHODS.items():
        package, _, _ = method.removeprefix("/").removeprefix("agentctl.").partition(".")
        if _PACKAGES.get(package) is component:
            roles |= allowed
    return roles


def _inside(roles: set[str]) -> list[str]:
    """The components of ours among the roles."""
    return sorted(role.removeprefix("cp/") for role in roles if role.startswith("cp/") and role != _KEDA)


def _peers(roles: set[str]) -> list[Json]:
    """Where calls of these roles to a component come from."""
    inside = _inside(roles)
    peers: list[Json] = [{"podSelector": _components(inside)}] if inside else []
    if ANONYMOUS in roles:  # whoever has no certificate yet, to get one
        return [{"podSelector": {"matchLabels": _OURS}}, _anywhere(_AGENT), _anywhere(_CLIENT)]
    if _KEDA in roles:
        peers.append({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}})
    if "agent" in roles:
        peers.append(_anywhere(_AGENT))
    if roles & {"producer", "user", "administrator"}:
        peers.append(_anywhere(_CLIENT))
    return peers


def _system() -> list[Json]:
    made = [
        _policy("default-deny", {}, ingress=[], egress=[]),
        _policy("dns", {}, egress=[_DNS]),
        _policy("metrics", {}, ingress=[{"from": [_anywhere(_PROMETHEUS)], "ports": _ports(*_METRICS)}]),
        _policy("api-server", _components(_ASKING), egress=[{"ports": _ports(*_API_SERVER)}]),
        *(
            _policy(f"{name}-edge", _components([name]), ingress=[{"ports": _ports(port)}])
            for name, port in EDGES.items()
        ),
        *_flow("postgres", "postgres", _POSTGRES, ["coordination", "modelgateway"]),
        *_flow("provider", "provider", _PROVIDER, ["modelgateway"], _anywhere(_AGENT)),
        *(
            _policy(
                f"{name}-edge",
                _components([name]),
                ingress=[{"from": [_anywhere(_AGENT), _anywhere(_CLIENT)], "ports": _ports(port)}],
            )
            for name, port in GATEWAYS.items()
        ),
        _policy("to-models-and-tools", _components(GATEWAYS), egress=[{"ports": _ports(*_MODELS)}]),
    ]
    for word, component in _SERVED.items():
        roles = callers(component)
        allowed: Json = {"from": _peers(roles), "ports": _ports(component.port)}
        made.append(_policy(word, _components([component.name]), ingress=[allowed]))
        inside = _inside(roles)
        if inside or ANONYMOUS in roles:
            from_pods = _components(inside) if inside else {"matchLabels": _OURS}
            made.append(_policy(f"to-{word}", from_pods, egress=[_to(component.name, component.port)]))
    to_agents: Json = {"to": [_anywhere(_AGENT)], "ports": _ports(AGENT.port)}
    made.append(_policy("to-agents", _components(_inside(callers(AGENT))), egress=[to_agents]))
    for policy in made:
        policy["metadata"]["namespace"] = _NAMESPACE
    return made


def _flow(name: str, component: str, port: int, from_components: list[str], *others: Json) -> list[Json]:
    peers: Json = {"from": [{"podSelector": _components(from_components)}, *others], "ports": _ports(port)}
    return [
        _policy(name, _components([component]), ingress=[peers]),
        _policy(f"to-{name}", _components(from_components), egress=[_to(component, port)]),
    ]


def _to(component: str, port: int) -> Json:
    return {"to": [{"podSelector": _components([component])}], "ports": _ports(port)}


def _tenant() -> list[Json]:
    served = [component for component in _SERVED.values() if callers(component) & {"agent", ANONYMOUS}]
    out: list[Json] = [_DNS, {"ports": _ports(*_MODELS)}]
    edges = [*GATEWAYS.items(), ("provider", _PROVIDER)]
    for name, port in [*((each.name, each.port) for each in served), *edges]:
        out.append({"to": [_system_pods([name])], "ports": _ports(port)})
    roles = callers(AGENT)
    people = [_anywhere(_CLIENT)] if roles & {"user", "administrator"} else []
    calls: Json = {"from": [_system_pods(_inside(roles)), *people], "ports": _ports(AGENT.port)}
    scrape: Json = {"from": [_anywhere(_PROMETHEUS)], "ports": _ports(9090)}
    return [_policy("agentctl-agents", {"matchLabels": _AGENT}, ingress=[calls, scrape], egress=out)]


def text(path: Path) -> str:
    """What the generated file at `path` should say."""
    dumped = yaml.safe_dump_all(FILES[path](), sort_keys=False)
    return _HEADER + dumped


def main() -> None:
    for path in FILES:
        path.write_text(text(path))


if __name__ == "__main__":
    main()
