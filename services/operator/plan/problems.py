"""Why an object cannot be rendered, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from libs.cluster import Object, key_of
from libs.cluster.kinds import MCP_SERVER_SET, MODEL_POOL
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec
from libs.resources.names import (
    LONGEST_CRON_JOB,
    LONGEST_LABEL,
    LONGEST_SCALED_OBJECT,
    LONGEST_STATEFUL_SET,
    agent_names,
)
from libs.resources.pool import PoolSpec, ServerSetSpec

from .context import Context, Problem
from .environment import Part
from .reading import parts

_MODE_BLOCKS = {"loop": "loop", "schedule": "schedule", "workflow": "workflow"}


def problems(thing: Object, spec: AgentSpec | FleetSpec, context: Context) -> tuple[Problem, ...]:
    """All that is wrong, not just the first."""
    found = [*_place(thing, context), *_name(thing, spec)]
    if isinstance(spec, AgentSpec):
        found += [*_mode(spec), *_workflow(spec, context)]
    else:
        found += _shards(spec, context)
    for at, part in parts(spec).items():
        found += [*_image(at, part, context), *_model(at, part, context), *_servers(at, part, context)]
    return tuple(dict.fromkeys(found))


def lacks(thing: Object, context: Context) -> tuple[Problem, ...]:
    """Why no agent can use a ModelPool or MCPServerSet; of another kind, nothing. msgspec.ValidationError if
    it is malformed."""
    name = key_of(thing)[1]
    if thing["kind"] == MODEL_POOL.name:
        return tuple(_of_pool(name, msgspec.convert(thing["spec"], PoolSpec), context))
    if thing["kind"] == MCP_SERVER_SET.name:
        return tuple(_of_set(name, msgspec.convert(thing["spec"], ServerSetSpec), context))
    return ()


def _place(thing: Object, context: Context) -> Iterator[Problem]:
    namespace, name = key_of(thing)
    if namespace == context.settings.system_namespace:
        yield Problem(
            "SystemNamespace",
            f"{namespace} is the control plane's namespace; create this object in another one",
        )
    born = _age(thing)
    for other in context.namesakes:
        shared = agent_names(thing) & agent_names(other)
        if shared and _age(other) < born:
            rival = f"{other['kind']} {key_of(other)[1]}"
            yield Problem(
                "NameConflict", f"{rival} has pods of the name {min(shared)}; give {name} another name"
            )


def _age(thing: Object) -> tuple[str, str]:
    metadata = thing["metadata"]
    # What is not there yet is the youngest.
    return metadata.get("creationTimestamp") or "~", metadata.get("uid") or "~"


def _name(thing: Object, spec: AgentSpec | FleetSpec) -> Iterator[Problem]:
    own = key_of(thing)[1]
    for name in sorted(agent_names(thing)):
        longest = _longest(spec) if name == own else LONGEST_LABEL
        if len(name) > longest:
            yield Problem(
                "RenderFailed",
                f"the name {name} has {len(name)} characters, {longest} are possible; shorten it",
            )


def _longest(spec: AgentSpec | FleetSpec) -> int:
    """Of its own name."""
    if isinstance(spec, AgentSpec):
        return LONGEST_CRON_JOB if spec.mode == "schedule" else LONGEST_LABEL
    return LONGEST_STATEFUL_SET if spec.scaling.mode == "shard" else LONGEST_SCALED_OBJECT


def _shards(spec: FleetSpec, context: Context) -> Iterator[Problem]:
    if spec.scaling.mode == "shard" and not context.settings.coordination_address:
        yield Problem(
            "RenderFailed",
            "spec.scaling.mode: coordination gives out the shards, and the operator has no"
            " AGENTCTL_COORDINATION_ADDRESS; set it, or use mode claim",
        )


def _mode(spec: AgentSpec) -> Iterator[Problem]:
    block = _MODE_BLOCKS.get(spec.mode)
    if block and getattr(spec, block) is None:
        yield Problem("RenderFailed", f"spec.{block} is missing: the mode {spec.mode} needs it")


def _workflow(spec: AgentSpec, context: Context) -> Iterator[Problem]:
    if spec.workflow is None:
        return
    reference = spec.workflow.config_map_key_ref
    if reference is None or f"ConfigMap/{reference.name}/{reference.key}" in context.hashes:
        return
    lacks = f"there is no ConfigMap {reference.name} in this namespace"
    if f"ConfigMap/{reference.name}" in context.hashes:
        lacks = f"ConfigMap {reference.name} has no key {reference.key}"
    yield Problem("UnknownWorkflow", f"spec.workflow.configMapKeyRef: {lacks}; create it or name another")


def _image(at: str, part: Part, context: Context) -> Iterator[Problem]:
    if part.contract == "agentd-1":
        if not part.image:
            yield Problem("RenderFailed", f"{at}.image is missing: contract agentd-1 needs it")
        if not context.settings.agent_image:
            yield Problem("RenderFailed", f"{at}.contract: the bridge is in OPERATOR_AGENT_IMAGE; set it")
        if at == "spec.coordinator.template":
            yield Problem("RenderFailed", f"{at}.contract: a coordinator speaks agentctl")
    elif not part.image and not context.settings.agent_image:
        yield Problem(
            "RenderFailed",
            f"{at}.image is empty and the operator has no OPERATOR_AGENT_IMAGE; set one of the two",
        )


def _model(at: str, part: Part, context: Context) -> Iterator[Problem]:
    if part.model is None:
        return
    named, model = part.model.pool, part.model.id
    if named not in context.pools:
        yield Problem(
            "UnknownModelPool",
            f"{at}.model.pool: there is no ModelPool {named} in this namespace; create it or name another",
        )
        return
    pool = msgspec.convert(context.pools[named]["spec"], PoolSpec)
    for lack in _of_pool(named, pool, context):
        yield replace(lack, message=f"{at}.model.pool: {lack.message}")
    if model and model not in pool.models:
        yield Problem(
            "UnknownModel",
            f"{at}.model.id: ModelPool {named} has no model {model!r}; it has {', '.join(pool.models)}",
        )


def _of_pool(name: str, pool: PoolSpec, context: Context) -> Iterator[Problem]:
    settings = context.settings
    if (fields := pool.for_gateway()) and not settings.model_gateway_url:
        yield Problem(
            "NoModelGateway",
            f"ModelPool {name} has {' and '.join(fields)}, which are for the model gateway, and there is none"
            " here; have AGENTCTL_MODEL_GATEWAY_URL set for the operator, or name one spec.endpoint instead",
        )
    if not (pool.endpoint or pool.endpoints or settings.stand_in_url):
        yield Problem(
            "NoEndpoint", f"ModelPool {name} names no endpoint, and there is no stand-in here; name one"
        )


def _servers(at: str, part: Part, context: Context) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name in part.mcp_servers:
        if name not in context.server_sets:
            yield Problem(
                "UnknownServerSet",
                f"{at}.mcpServers: there is no MCPServerSet {name} here; create it or name another",
            )
            continue
        servers = msgspec.convert(context.server_sets[name]["spec"], ServerSetSpec)
        for lack in _of_set(name, servers, context):
            yield replace(lack, message=f"{at}.mcpServers: {lack.message}")
        for server in servers.servers:
            if server.name in seen:
                yield Problem(
                    "DuplicateServer",
                    f"{at}.mcpServers: {seen[server.name]} and {name} both have a {server.name}; rename one",
                )
            seen.setdefault(server.name, name)


def _of_set(name: str, servers: ServerSetSpec, context: Context) -> Iterator[Problem]:
    for server in servers.servers if not context.settings.mcp_gateway_url else ():
        if fields := server.for_gateway():
            yield Problem(
                "NoMcpGateway",
                f"MCPServerSet {name}: its server {server.name} has {' and '.join(fields)}, for the MCP"
                " gateway, and there is none here; have AGENTCTL_MCP_GATEWAY_URL set for the operator, or"
                " leave it out",
            )
