"""What the API server refuses besides the schema: metadata, templates, data, and what may not change."""

from __future__ import annotations

import base64
import re
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from libs.cluster import Object
from libs.cluster.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    SECRET,
    STATEFUL_SET,
    Kind,
)
from libs.errors import InvalidError

from . import metadata
from .metadata import Findings

_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    POD: ("spec",),
    DEPLOYMENT: ("spec", "template", "spec"),
    REPLICA_SET: ("spec", "template", "spec"),
    STATEFUL_SET: ("spec", "template", "spec"),
    JOB: ("spec", "template", "spec"),
    CRON_JOB: ("spec", "jobTemplate", "spec", "template", "spec"),
}
IMMUTABLE = "field is immutable"
MOST_KEYS = 1_000
"""Of a ConfigMap or Secret, each of which may become a file. The API server bounds the size alone."""
_MOST_DATA = 2**20
_MOST_FOUND = 16  # that a message lists
_KEY = re.compile(r"[-._A-Za-z0-9]+")

_FIXED = {
    JOB: (
        "template",
        "selector",
        "completions",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
    ),
    DEPLOYMENT: ("selector",),
    REPLICA_SET: ("selector",),
}
_FREE = {
    STATEFUL_SET: (
        "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
    ),
    POD: ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"),
}  # fmt: skip


def check(kind: Kind, thing: Object, before: Object | None) -> None:
    """InvalidError that names all that is wrong with an object, or with the change of it."""
    found = dict(metadata.check(kind, thing["metadata"]))
    if kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
        found.update(_selection(thing.get("spec", {})))
    if kind in _TEMPLATES:
        found.update(_pod(thing, _TEMPLATES[kind]))
    if kind in (CONFIG_MAP, SECRET):
        found.update(_data(kind, thing))
    if kind == CRON_JOB:
        found.update(_schedule(thing, before))
    if before is not None:
        found.update(_changes(kind, thing, before))
    if found:
        told = dict(islice(found.items(), _MOST_FOUND))
        listed = "; ".join(f"{where}: {what}" for where, what in told.items())
        name = metadata.shown(thing["metadata"]["name"])
        raise InvalidError(f'The {kind.name} "{name}" is invalid: {listed}', told)


def _selection(spec: Object) -> Findings:
    wanted, labels = _at(spec, "selector", "matchLabels"), _at(spec, "template", "metadata", "labels")
    if not wanted:
        yield "spec.selector", "Required value"
    elif any(labels.get(key) != value for key, value in wanted.items()):
        yield "spec.template.metadata.labels", "`selector` does not match template `labels`"


def _pod(thing: Object, path: tuple[str, ...]) -> Findings:
    """What makes a template no pod: no container, one without a proper name, a mount of no volume."""
    spec, where = _at(thing, *path), ".".join(path)
    claims = [_at(claim, "metadata") for claim in _list(_at(thing, "spec").get("volumeClaimTemplates"))]
    volumes = [_at(volume).get("name") for volume in [*_list(spec.get("volumes")), *claims]]
    if not _list(spec.get("containers")):
        yield f"{where}.containers", "Required value"
    for part in ("initContainers", "containers"):
        for index, container in enumerate(_list(spec.get(part))):
            here = f"{where}.{part}[{index}]"
            if not metadata.is_label(_at(container).get("name")):
                yield f"{here}.name", "must be a name of lower case letters, digits and '-'"
            for place, mount in enumerate(_list(_at(container).get("volumeMounts"))):
                if (claimed := _at(mount).get("name")) not in volumes:
                    yield f"{here}.volumeMounts[{place}].name", f"Not found: {metadata.shown(claimed)!r}"


def _data(kind: Kind, thing: Object) -> Findings:
    """What is wrong with the keys and values of a ConfigMap or Secret."""
    parts = {part: thing.get(part, {}) for part in ("data", "binaryData")}
    if kind == SECRET:
        parts.pop("binaryData")
    count = sum(map(len, parts.values()))
    if count > MOST_KEYS:
        yield "data", f"Too many: {count}: must have at most {MOST_KEYS} keys"
        return
    for part, values in parts.items():
        is_encoded = kind == SECRET or part == "binaryData"
        for key, value in values.items():
            where = f"{part}[{metadata.shown(key)}]"
            if not _KEY.fullmatch(key) or len(key) > 253 or key == "." or key.startswith(".."):
                yield where, "a key has letters, digits, '-', '_' and '.' only, and does not begin with '..'"
            if not isinstance(value, str) or (is_encoded and not _is_base64(value)):
                yield where, "must be text in base64" if is_encoded else "must be a string"
    for key in parts["data"].keys() & parts.get("binaryData", {}).keys():
        yield f"binaryData[{key}]", "it is in data, too"
    size = sum(len(value) for values in parts.values() for value in values.values() if isinstance(value, str))
    if size > _MOST_DATA:
        yield "data", f"Too long: may not be more than {_MOST_DATA} bytes"
    if not isinstance(thing.get("immutable", False), bool):
        yield "immutable", "must be true or false"
    if kind == SECRET and not isinstance(thing.get("type", ""), str):
        yield "type", "must be a string"


def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of that name; None if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: it is a folder of zones
        return None


def _schedule(thing: Object, before: Object | None) -> Findings:
    name = _at(thing, "spec").get("timeZone")
    if name is None or (before is not None and name == _at(before, "spec").get("timeZone")):
        return
    if not isinstance(name, str) or name in ("", "Local") or zone_of(name) is None:
        yield "spec.timeZone", f"unknown time zone {metadata.shown(name)}"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _at(value: Any, *path: str) -> Object:
    """The map there; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _changes(kind: Kind, thing: Object, before: Object) -> Findings:
    new, old = thing.get("spec", {}), before.get("spec", {})
    for key in _FIXED.get(kind, ()):
        if new.get(key) != old.get(key):
            yield f"spec.{key}", IMMUTABLE
    if kind == STATEFUL_SET and _without(new, _FREE[kind]) != _without(old, _FREE[kind]):
        allowed = ", ".join(f"'{key}'" for key in _FREE[kind])
        yield "spec", f"updates to fields other than {allowed} are forbidden: field is immutable"
    if kind == POD and _placed(new, old) != _placed(old, old):
        yield "spec", f"pod updates may not change fields other than images and deadlines: {IMMUTABLE}"
    if kind in (CONFIG_MAP, SECRET) and before.get("immutable"):
        for key in ("data", "binaryData", "immutable"):
            if thing.get(key) != before.get(key):
                yield key, "field is immutable when `immutable` is set"
    if kind == SECRET and thing.get("type") != before.get("type"):
        yield "type", IMMUTABLE
    gained = set(thing["metadata"].get("finalizers", ())) - set(before["metadata"].get("finalizers", ()))
    if gained and "deletionTimestamp" in before["metadata"]:
        yield (
            "metadata.finalizers",
            f"no new finalizers can be added if the object is being deleted: {gained}",
        )


def _without(spec: Object, keys: tuple[str, ...]) -> Object:
    return {key: value for key, value in spec.items() if key not in keys}


def _placed(spec: Object, old: Object) -> Object:
    """The part of a pod's spec that may not change; a node may be given to one that has none."""
    rest: dict[str, Any] = _without(spec, _FREE[POD])
    if not old.get("nodeName"):
        rest.pop("nodeName", None)
    for part in ("containers", "initContainers"):
        rest[part] = [_without(_at(container), ("image",)) for container in _list(spec.get(part))]
    return rest
