"""What an object says, read; it may be anything that JSON can say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, OURS, SECRET, Kind
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec, WorkerTemplate
from libs.resources.pod import AgentContainer, PodTemplate, TemplateSpec
from libs.resources.pool import PoolSpec, Server, ServerSetSpec

Spec = AgentSpec | FleetSpec | PoolSpec | ServerSetSpec
Part = AgentSpec | WorkerTemplate
"""What pods are made of: an agent, a fleet's worker, a coordinator."""

OVERRIDE = "agentctl.dev/allow-trifecta"
"""The annotation with the reason for an override of the trifecta rule."""

_SPECS: Mapping[Kind, type[Spec]] = {
    AGENT: AgentSpec,
    AGENT_FLEET: FleetSpec,
    MODEL_POOL: PoolSpec,
    MCP_SERVER_SET: ServerSetSpec,
}
_FILLERS = "\u115f\u1160\u3164\uffa0"  # letters by Unicode, and invisible
_DEEPEST = 64  # no manifest of ours is half as deep


class MalformedError(ValueError):
    """It is no object of its kind; the text begins with where, as spec.model.pool."""


def kind_of(thing: Object) -> Kind | None:
    """Which of our kinds it is."""
    said = (thing.get("apiVersion"), thing.get("kind"))
    return next((kind for kind in OURS if (kind.api_version, kind.name) == said), None)


def is_readable(value: Any) -> bool:
    """Whether it is an object, of Unicode, and not so deep that reading it is an attack."""
    level, depth = [value], 0
    while level and depth < _DEEPEST:
        inner = [item for each in level for item in _inside(each)]
        if not all(map(_is_unicode, inner)):
            return False
        level, depth = [each for each in inner if isinstance(each, dict | list)], depth + 1
    return isinstance(value, dict) and not level


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list) else ()


def _is_unicode(value: Any) -> bool:
    """Whether it is no text, or text without half a character, which no wire can carry."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def metadata(thing: Object | None) -> Object:
    """Its metadata, as far as that is an object."""
    return _object((thing or {}).get("metadata"))


def text(thing: Object | None, key: str) -> str:
    """A text of its metadata; "" if there is none."""
    value = metadata(thing).get(key)
    return value if isinstance(value, str) else ""


def reason(thing: Object | None) -> str:
    """Why the trifecta rule shall not count for it; "" if it shall."""
    value = _object(metadata(thing).get("annotations")).get(OVERRIDE)
    if not isinstance(value, str) or not any(each.isalnum() and each not in _FILLERS for each in value):
        return ""
    return value.strip()


def is_leaving(thing: Object, old: Object | None) -> bool:
    """Whether it is being deleted. Only what is there can be: a new object that says so is lying."""
    both = (thing, old)
    return all(
        isinstance(each, dict) and metadata(each).get("deletionTimestamp") is not None for each in both
    )


def is_untouched(thing: Object, old: Object | None) -> bool:
    """Whether the change leaves all as it is that rules look at."""
    return old is not None and thing.get("spec") == old.get("spec") and reason(thing) == reason(old)


def read(thing: Object, kind: Kind) -> Spec:
    """Its spec. MalformedError."""
    try:
        return msgspec.convert(_without_nulls(thing.get("spec")), _SPECS[kind])
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise MalformedError(f"spec{where.rstrip('`')}: {what}") from error


def parts(spec: Spec) -> dict[str, Part]:
    """What it makes pods of, by where that is said."""
    match spec:
        case AgentSpec():
            return {"spec": spec}
        case FleetSpec():
            front = {"spec.coordinator.template": spec.coordinator.template} if spec.coordinator else {}
            return {"spec.template": spec.template, **front}
        case _:
            return {}


def pod(part: Part) -> TemplateSpec:
    """What it says of its pods."""
    return (part.pod_template or PodTemplate()).spec


def runs(part: Part) -> tuple[Any, ...]:
    """What decides who gets what its pods are given: the program, all that it is given, and where the key of
    its model is sent. Not the instruction: an agent shows its model no Secret."""
    spec = pod(part)
    inside = next(iter(spec.containers), AgentContainer())
    given = inside.env, inside.env_from, inside.volume_mounts, spec.volumes
    accounts = spec.service_account_name, spec.image_pull_secrets
    model = part.model.pool if part.model else ""
    return part.image, part.contract, inside.command, inside.args, *given, *accounts, model


def secrets(at: str, part: Part) -> Iterator[tuple[str, str]]:
    """Where its pods read a Secret, and which."""
    return ((where, name) for where, kind, name in _references(at, part) if kind == SECRET)


def pull_secrets(at: str, part: Part) -> Iterator[tuple[str, str]]:
    """Where a Secret is named for the image's registry, and which. No agent can read it."""
    for index, each in enumerate(pod(part).image_pull_secrets):
        if isinstance(name := each.get("name"), str):
            yield f"{at}.podTemplate.spec.imagePullSecrets[{index}].name", name


def credentials(spec: Spec) -> Iterator[tuple[str, str, Any]]:
    """Where a Secret is named that a gateway shows somebody, which, and how to whom."""
    if isinstance(spec, PoolSpec):
        for index, endpoint in enumerate(spec.endpoints):
            if credential := endpoint.credential:
                where = f"spec.endpoints[{index}].credential.secretRef.name"
                yield where, credential.secret_ref.name, (endpoint.url, credential)
    if isinstance(spec, ServerSetSpec):
        for index, server in enumerate(spec.servers):
            if server.auth and server.auth.secret_ref:
                where = f"spec.servers[{index}].auth.secretRef.name"
                yield where, server.auth.secret_ref.name, (server.endpoint, server.auth)


def servers(thing: Object) -> list[Server]:
    """Those of an MCPServerSet; none if it is malformed."""
    try:
        spec = read(thing, MCP_SERVER_SET) if is_readable(thing) else None
    except MalformedError:
        return []
    return spec.servers if isinstance(spec, ServerSetSpec) else []


def models(thing: Object) -> list[str]:
    """Those of a ModelPool; none if it is malformed."""
    try:
        spec = read(thing, MODEL_POOL) if is_readable(thing) else None
    except MalformedError:
        return []
    return spec.models if isinstance(spec, PoolSpec) else []


def objects(value: Any) -> Iterator[tuple[int, Object]]:
    """Those of a list's items that are objects, with their index."""
    return ((index, item) for index, item in enumerate(_list(value)) if isinstance(item, dict))


def _references(at: str, part: Part) -> Iterator[tuple[str, Kind, str]]:
    spec, where = pod(part), f"{at}.podTemplate.spec"
    for n, container in enumerate(spec.containers):
        inside = f"{where}.containers[{n}]"
        for index, variable in objects(container.env):
            source = f"{inside}.env[{index}].valueFrom"
            yield from _named(
                source, _object(variable.get("valueFrom")), "configMapKeyRef", "secretKeyRef", "name"
            )
        for index, source_of_all in objects(container.env_from):
            yield from _named(
                f"{inside}.envFrom[{index}]", source_of_all, "configMapRef", "secretRef", "name"
            )
    for index, volume in objects(spec.volumes):
        here = f"{where}.volumes[{index}]"
        yield from _named(here, volume, "configMap", "secret", "secretName")
        projected = _object(volume.get("projected")).get("sources")
        for n, source_object in objects(projected):
            yield from _named(f"{here}.projected.sources[{n}]", source_object, "configMap", "secret", "name")


def _named(
    at: str, source: Object, config_map: str, secret: str, key: str
) -> Iterator[tuple[str, Kind, str]]:
    for field, kind, named in ((config_map, CONFIG_MAP, "name"), (secret, SECRET, key)):
        if isinstance(name := _object(source.get(field)).get(named), str):
            yield f"{at}.{field}.{named}", kind, name


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _without_nulls(value: Any) -> Any:
    """As the API server stores it."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
