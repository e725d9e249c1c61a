"""What an agent is told: its environment variables. Only what is set is said."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from libs.cluster import Object
from libs.mesh import AGENT
from libs.resources.agent import AgentSpec, Limits, ModelRef
from libs.resources.fleet import FleetSpec, WorkerTemplate
from libs.resources.pool import PoolSpec, Server, ServerSetSpec

from .context import Context, Shards
from .duration import shown

RUN = "/run/agentctl"
TOKEN, TRUST, TLS, WORKFLOW = f"{RUN}/token", f"{RUN}/trust", f"{RUN}/tls", f"{RUN}/workflow"
WORKFLOW_FILE = f"{WORKFLOW}/workflow"
TMP = "/tmp"
METRICS_PORT, GRPC_PORT = 9090, AGENT.port
REPORT_FILE = "/dev/termination-log"
"""Where Kubernetes finds what a container says at its end: at most 4096 bytes of it."""

Part = AgentSpec | WorkerTemplate
"""What an agent, a fleet's worker and a coordinator have in common: image, instruction, model, …"""

_FIELDS = {
    "AGENT_HOST": "status.podIP",
    "AGENTCTL_POD_NAME": "metadata.name",
    "AGENTCTL_POD_UID": "metadata.uid",
    "AGENTCTL_POD_NAMESPACE": "metadata.namespace",
    "AGENTCTL_NODE_NAME": "spec.nodeName",
}


_RUN_ID = "metadata.labels['batch.kubernetes.io/controller-uid']"
_SHARD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def listed(values: Mapping[str, str]) -> list[Object]:
    """As containers have them; empty values are left out."""
    return [{"name": name, "value": literal(value)} for name, value in values.items() if value]


def literal(text: str) -> str:
    """The text as a container's word or value, where $(NAME) would be another variable's value."""
    return text.replace("$", "$$")


def fields(paths: Mapping[str, str]) -> list[Object]:
    """Variables that say what only the pod itself knows."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]


def run_id() -> list[Object]:
    """The run's id: the Job's uid, so that a retry is known as the same run."""
    return fields({"AGENT_RUN_ID": _RUN_ID})


def common(part: Part, context: Context) -> list[Object]:
    """What every agent is told, whatever it is for."""
    settings = context.settings
    return fields(_FIELDS) + listed(
        {
            "AGENT_METRICS_PORT": str(METRICS_PORT),
            "AGENTCTL_COORDINATION_ADDRESS": settings.coordination_address,
            "AGENTCTL_IDENTITY_ADDRESS": settings.identity_address,
            "AGENTCTL_TOKEN_FILE": f"{TOKEN}/token",
            "AGENTCTL_TRUST_DIR": TRUST,
            "AGENTCTL_TLS_DIR": TLS,
            "AGENT_INSTRUCTION": part.instruction,
            **_model(part, context),
            "AGENT_MODEL_CA_FILE": f"{TRUST}/ca.crt" if part.model or part.mcp_servers else "",
            "AGENT_MCP_SERVERS": _servers(part, context),
            **_limits(part.limits or Limits()),
        }
    )


def of_agent(spec: AgentSpec) -> list[Object]:
    """What an Agent is told about its mode."""
    run = run_id() + listed({"AGENT_REPORT_FILE": REPORT_FILE}) if ends(spec) else []
    return run + listed(
        {
            "AGENT_MODE": mode_of(spec),
            "AGENT_LOOP_INTERVAL": shown(spec.loop.interval) if spec.loop else "",
            "AGENT_SUBSCRIBE": json.dumps(spec.subscribe) if spec.subscribe else "",
            "AGENT_WORKFLOW_FILE": WORKFLOW_FILE if spec.workflow else "",
        }
    )


def mode_of(spec: AgentSpec) -> str:
    """The mode as its agent has it. A CronJob is the only clock: its runs are `once`."""
    return "once" if spec.mode == "schedule" else spec.mode


def ends(spec: AgentSpec) -> bool:
    """Whether its pods are runs, which end."""
    return mode_of(spec) in ("once", "workflow")


def of_worker(spec: FleetSpec, queue: str, shards: Shards | None) -> list[Object]:
    """What a fleet's worker is told about its work; `shards` is for those of mode shard."""
    work = spec.work
    told = listed(
        {
            "AGENT_QUEUE": queue,
            "AGENT_SLOTS": str(work.slots),
            "AGENT_LEASE": shown(work.lease),
            "AGENT_DRAIN_TIMEOUT": shown(work.drain or ""),
        }
    )
    if spec.scaling.mode == "claim" or shards is None:
        return told
    division = {"AGENT_SHARD_COUNT": str(shards.count), "AGENT_SHARD_EPOCH": str(shards.epoch)}
    return told + fields({"AGENT_SHARD_INDEX": _SHARD_INDEX}) + listed(division)


def of_coordinator(queue: str) -> list[Object]:
    """The coordinator submits to the fleet's queue and claims nothing."""
    return listed({"AGENT_MODE": "coordinator", "AGENT_QUEUE": queue})


def model_of(part: Part, context: Context) -> str:
    """The model that it asks; empty if it asks none."""
    return (part.model.id or _pool(part.model, context).models[0]) if part.model else ""


def servers_of(part: Part, context: Context) -> list[Server]:
    """The tool servers that it may use."""
    return [
        server
        for name in part.mcp_servers
        for server in msgspec.convert(context.server_sets[name]["spec"], ServerSetSpec).servers
    ]


def _model(part: Part, context: Context) -> dict[str, str]:
    if part.model is None:
        return {}
    settings = context.settings
    gateway = settings.model_gateway_url
    return {
        "AGENT_MODEL": model_of(part, context),
        "OPENAI_BASE_URL": gateway or _pool(part.model, context).endpoint or settings.stand_in_url,
        "AGENT_MODEL_IDENTITY": "true" if gateway else "",
    }


def _pool(model: ModelRef, context: Context) -> PoolSpec:
    return msgspec.convert(context.pools[model.pool]["spec"], PoolSpec)


def _servers(part: Part, context: Context) -> str:
    servers = [_server(each, context.settings.mcp_gateway_url) for each in servers_of(part, context)]
    return json.dumps(servers) if servers else ""


def _server(server: Server, gateway: str) -> Object:
    """As an agent is told of it. It shows its certificate at the gateway, and nowhere else."""
    if not gateway:
        return {"name": server.name, "endpoint": server.endpoint, "tags": server.tags}
    endpoint = f"{gateway.rstrip('/')}/servers/{server.name}/mcp"
    return {"name": server.name, "endpoint": endpoint, "tags": server.tags, "identity": True}


def _limits(limits: Limits) -> dict[str, str]:
    told = {
        "AGENT_MAX_TOKENS": limits.max_tokens,
        "AGENT_MAX_STEPS": limits.max_steps,
        "AGENT_MAX_DEPTH": limits.max_depth,
        "AGENT_DEADLINE": shown(limits.deadline) or None,
    }
    return {name: str(value) for name, value in told.items() if value is not None}
