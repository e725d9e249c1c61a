"""Objects to judge."""

from __future__ import annotations

import copy
from typing import Any

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET, MODEL_POOL, Kind

MODEL = {"pool": "large", "id": "small-1"}


def declared(kind: Kind, name: str, spec: Object, **metadata: Any) -> Object:
    """One in the namespace demo."""
    named = {"name": name, "namespace": "demo", **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": named, "spec": copy.deepcopy(spec)}


def agent(name: str = "scout", metadata: Object | None = None, **spec: Any) -> Object:
    """One that nothing is to be said of."""
    usual = {"mode": "once", "instruction": "Look around.", "model": MODEL, "limits": {"deadline": "5m"}}
    return declared(AGENT, name, {**usual, **spec}, **(metadata or {}))


def fleet(name: str = "herd", **spec: Any) -> Object:
    """Likewise."""
    usual = {"template": template()}
    return declared(AGENT_FLEET, name, {**usual, **spec})


def template(**said: Any) -> Object:
    """A fleet's."""
    return {"instruction": "Do it.", "model": MODEL, "limits": {"deadline": "5m"}, **said}


def pool(name: str = "large", **spec: Any) -> Object:
    return declared(MODEL_POOL, name, {"models": ["large-1", "small-1"], **spec})


def server_set(name: str, *servers: Object) -> Object:
    return declared(MCP_SERVER_SET, name, {"servers": list(servers)})


def server(name: str, *tags: str, endpoint: str = "https://tools.example.com/mcp") -> Object:
    return {"name": name, "endpoint": endpoint, "tags": list(tags)}


def pods(container: Object | None = None, **spec: Any) -> Object:
    """A podTemplate."""
    containers = {"containers": [{"name": "agent", **container}]} if container else {}
    return {"spec": {**containers, **spec}}
