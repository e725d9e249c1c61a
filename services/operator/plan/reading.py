"""What an object says, read; and what it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from libs.cluster import Object, key_of
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, SECRET
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec
from libs.resources.names import COORDINATOR
from libs.resources.pod import PodTemplate

from .context import Reference
from .environment import Part
from .owned import digest


def read(thing: Object) -> AgentSpec | FleetSpec | None:
    """Its spec; None for another kind. msgspec.ValidationError if it is malformed."""
    kinds: dict[str, type[AgentSpec | FleetSpec]] = {AGENT.name: AgentSpec, AGENT_FLEET.name: FleetSpec}
    kind = kinds.get(thing["kind"])
    return msgspec.convert(thing.get("spec"), kind, strict=True) if kind else None


def spec_hash(spec: AgentSpec | FleetSpec) -> str:
    """A hash of what it says; what says no more than the defaults does not count."""
    return digest(msgspec.to_builtins(spec))


def parts(spec: AgentSpec | FleetSpec) -> dict[str, Part]:
    """What it makes pods of, by where that is said: the agent; or the worker and perhaps the coordinator."""
    if isinstance(spec, AgentSpec):
        return {"spec": spec}
    front = {"spec.coordinator.template": spec.coordinator.template} if spec.coordinator else {}
    return {"spec.template": spec.template, **front}


def coordinator_of(fleet: str) -> str:
    """The agent name of a fleet's coordinator."""
    return fleet + COORDINATOR


def references(thing: Object) -> tuple[Reference, ...]:
    """The pools, server sets, ConfigMaps and Secrets that it names, each once; none if it is malformed."""
    try:
        spec = read(thing)
    except msgspec.ValidationError:
        return ()
    found = [each for part in parts(spec).values() for each in _named(part)] if spec else []
    return tuple(dict.fromkeys(found))


def content_of(part: Part, hashes: Mapping[str, str]) -> dict[str, str]:
    """Those of the hashes that tell what the part's pods read."""
    keys = [f"{kind.name}/{name}" for kind, name in _named(part) if kind in (CONFIG_MAP, SECRET)]
    return {key: hashes[key] for key in keys if key in hashes}


def contents(thing: Object) -> dict[str, str]:
    """Hashes of a ConfigMap's or Secret's content, for `Context.hashes`: of the whole, and of each key."""
    said = (thing.get("binaryData"), thing.get("data"))
    data = {key: value for each in said if isinstance(each, dict) for key, value in each.items()}
    whole = f"{thing['kind']}/{key_of(thing)[1]}"
    return {whole: digest(data)} | {f"{whole}/{key}": digest(value) for key, value in data.items()}


def _named(part: Part) -> Iterator[Reference]:
    if part.model:
        yield MODEL_POOL, part.model.pool
    yield from ((MCP_SERVER_SET, name) for name in part.mcp_servers)
    if isinstance(part, AgentSpec) and part.workflow and part.workflow.config_map_key_ref:
        yield CONFIG_MAP, part.workflow.config_map_key_ref.name
    spec = (part.pod_template or PodTemplate()).spec
    for container in spec.containers:
        yield from _sources(
            (env.get("valueFrom") for env in container.env), "configMapKeyRef", "secretKeyRef"
        )
        yield from _sources(container.env_from, "configMapRef", "secretRef")
    yield from _sources(spec.volumes, "configMap", "secret")
    for volume in spec.volumes:
        projected = volume.get("projected")
        sources = projected.get("sources") if isinstance(projected, dict) else None
        yield from _sources(sources or (), "configMap", "secret")


def _sources(things: Iterable[Any], config_map: str, secret: str) -> Iterator[Reference]:
    """References in things as pods have them. What is not as it should be is the API server's to refuse."""
    for thing in things:
        for key, kind in ((config_map, CONFIG_MAP), (secret, SECRET)):
            source = thing.get(key) if isinstance(thing, dict) else None
            name = (source.get("name") or source.get("secretName")) if isinstance(source, dict) else None
            if isinstance(name, str):
                yield kind, name
