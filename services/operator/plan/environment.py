"""What an agent is told: its environment variables. Only what is set is said."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from libs.cluster import Object
from libs.resources.agent import AgentSpec, Limits
from libs.resources.fleet import FleetSpec, WorkerTemplate
from libs.resources.pool import PoolSpec, ServerSetSpec

from .context import Context
from .duration import shown

RUN = "/run/agentctl"
TOKEN, TRUST, TLS, WORKFLOW = f"{RUN}/token", f"{RUN}/trust", f"{RUN}/tls", f"{RUN}/workflow"
METRICS_PORT = 9090

Part = AgentSpec | WorkerTemplate
"""What an agent, a fleet's worker and a coordinator have in common: image, instruction, model, …"""

_FIELDS = {
    "AGENT_HOST": "status.podIP",
    "AGENTCTL_POD_NAME": "metadata.name",
    "AGENTCTL_POD_UID": "metadata.uid",
    "AGENTCTL_POD_NAMESPACE": "metadata.namespace",
    "AGENTCTL_NODE_NAME": "spec.nodeName",
}


def listed(values: Mapping[str, str]) -> list[Object]:
    """As containers have them; empty values are left out."""
    return [{"name": name, "value": value} for name, value in values.items() if value]


def common(part: Part, context: Context) -> list[Object]:
    """What every agent is told, whatever it is for."""
    fields = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _FIELDS.items()
    ]
    settings = context.settings
    return fields + listed(
        {
            "AGENT_METRICS_PORT": str(METRICS_PORT),
            "AGENTCTL_COORDINATION_ADDRESS": settings.coordination_address,
            "AGENTCTL_IDENTITY_ADDRESS": settings.identity_address,
            "AGENTCTL_TOKEN_FILE": f"{TOKEN}/token",
            "AGENTCTL_TRUST_DIR": TRUST,
            "AGENTCTL_TLS_DIR": TLS,
            "AGENT_INSTRUCTION": part.instruction,
            **_model(part, context),
            "AGENT_MCP_SERVERS": _servers(part, context),
            **_limits(part.limits or Limits()),
        }
    )


def of_agent(spec: AgentSpec) -> list[Object]:
    """What an Agent is told about its mode. A CronJob is the only clock: its runs are `once`."""
    return listed(
        {
            "AGENT_MODE": "once" if spec.mode == "schedule" else spec.mode,
            "AGENT_LOOP_INTERVAL": shown(spec.loop.interval) if spec.loop else "",
            "AGENT_LOOP_DEADLINE": shown(spec.loop.deadline) if spec.loop else "",
            "AGENT_SUBSCRIBE": json.dumps(spec.subscribe) if spec.subscribe else "",
            "AGENT_WORKFLOW_FILE": f"{WORKFLOW}/workflow" if spec.workflow else "",
        }
    )


def of_worker(spec: FleetSpec, queue: str) -> list[Object]:
    """What a fleet's worker is told about its work."""
    work = spec.work
    return listed({"AGENT_QUEUE": queue, "AGENT_SLOTS": str(work.slots), "AGENT_LEASE": shown(work.lease)})


def of_coordinator(queue: str) -> list[Object]:
    """The coordinator submits to the fleet's queue and claims nothing."""
    return listed({"AGENT_MODE": "coordinator", "AGENT_QUEUE": queue})


def _model(part: Part, context: Context) -> dict[str, str]:
    if part.model is None:
        return {}
    said = msgspec.convert(context.pools[part.model.pool]["spec"], PoolSpec)
    return {
        "AGENT_MODEL": part.model.id or said.models[0],
        "OPENAI_BASE_URL": said.endpoint or context.settings.stand_in_url,
        "AGENT_MODEL_CA_FILE": f"{TRUST}/ca.crt",
    }


def _servers(part: Part, context: Context) -> str:
    servers = [
        {"name": server.name, "endpoint": server.endpoint, "tags": server.tags}
        for name in part.mcp_servers
        for server in msgspec.convert(context.server_sets[name]["spec"], ServerSetSpec).servers
    ]
    return json.dumps(servers) if servers else ""


def _limits(limits: Limits) -> dict[str, str]:
    told = {
        "AGENT_MAX_TOKENS": limits.max_tokens,
        "AGENT_MAX_STEPS": limits.max_steps,
        "AGENT_MAX_DEPTH": limits.max_depth,
    }
    return {name: str(value) for name, value in told.items() if value is not None}
