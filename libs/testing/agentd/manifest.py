"""The capabilities manifest, contract 1.0, of this invocation's flags."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from . import a2a, verbs
from .exits import Json
from .options import Options

SCHEMA = "1.0"
CHILDREN, SUBAGENTS, TREE_TOKENS, SERVED = 8, 64, 2_000_000, 4


def manifest(options: Options, models: Sequence[str] = ()) -> Json:
    """What `--capabilities` prints and `agent://capabilities` holds; an absent surface is not built in."""
    return {
        "contract_version": "1.0",
        "agent_version": options.agent_version,
        "build_features": ["a2a", "metrics", "serve-https", "standin"],
        "identity": {
            "run_id": options.run_id,
            "instance": options.instance,
            "uid": options.uid,
            "node": options.node,
            "namespace": options.namespace,
        },
        "mode": options.mode,
        "model": options.model or None,
        "intelligence": {
            "transport": urlsplit(options.endpoints[0]).scheme if options.endpoints else None,
            "endpoints": len(options.endpoints),
            "healthy": "unknown",
            "discovery": bool(models),
            "models": list(models),
        },
        "intelligence_summary": {"toolmode": "native"},
        "mcp_servers": [{"name": server.name, "tags": list(server.tags)} for server in options.servers],
        "a2a_peers": [],
        "allow_trifecta": options.allow_trifecta,
        "limits": {
            "max_steps": options.max_steps,
            "max_tokens": options.max_tokens,
            "deadline_secs": round(options.deadline),
            "max_depth": options.max_depth,
            "max_children": CHILDREN,
            "max_total_subagents": SUBAGENTS,
            "max_tree_tokens": TREE_TOKENS,
            "max_served_runs": SERVED,
        },
        "surfaces": _surfaces(options),
    }


def _surfaces(options: Options) -> Json:
    served = options.serve is not None
    surfaces: Json = {
        "management": options.serve or False,
        "operator_tools": list(verbs.METHODS),
        "a2a": {"version": "1.0", "streaming": True, "methods": list(a2a.METHODS)} if served else False,
        "metrics": options.metrics_addr or False,
        "metrics_schema": SCHEMA,
        "report_schema": SCHEMA,
        "exit_codes": SCHEMA,
        "events": served,
        "intelligence": served,
        "config_effective": served,
        "hot_reload": False,
        "config_validate": True,
        "config_schema": False,
        "cluster": False,
        "shard": None,
        "standby": False,
    }
    return surfaces | ({"events_schema": SCHEMA} if served else {})
