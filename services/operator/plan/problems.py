"""Why an object cannot be rendered, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from libs.cluster import Object, key_of
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
    if not pool.endpoint and not context.settings.stand_in_url:
        yield Problem(
            "NoEndpoint",
            f"{at}.model.pool: ModelPool {named} names no endpoint, and there is no stand-in here; name one",
        )
    models = pool.models
    if not models or (model and model not in models):
        yield Problem(
            "UnknownModel",
            f"{at}.model.id: ModelPool {named} has no model {model!r}; it has {', '.join(models) or 'none'}",
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
        for server in msgspec.convert(context.server_sets[name]["spec"], ServerSetSpec).servers:
            if server.name in seen:
                yield Problem(
                    "DuplicateServer",
                    f"{at}.mcpServers: {seen[server.name]} and {name} both have a {server.name}; rename one",
                )
            seen.setdefault(server.name, name)
