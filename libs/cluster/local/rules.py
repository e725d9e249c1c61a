"""What the API server refuses besides the schema: names, labels, owners, and fields that may not change."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from libs.cluster import Object
from libs.cluster.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    REPLICA_SET,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)
from libs.errors import InvalidError

_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    POD: ("spec",),
    DEPLOYMENT: ("spec", "template", "spec"),
    REPLICA_SET: ("spec", "template", "spec"),
    STATEFUL_SET: ("spec", "template", "spec"),
    JOB: ("spec", "template", "spec"),
    CRON_JOB: ("spec", "jobTemplate", "spec", "template", "spec"),
}
IMMUTABLE = "field is immutable"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KEY = re.compile(r"[-._A-Za-z0-9]+")
_LONGEST = {NAMESPACE: 63, SERVICE: 63, CRON_JOB: 52}  # a CronJob's name gets 11 more characters in its Jobs

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
    found = dict(_metadata(kind, thing["metadata"]))
    if kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
        found.update(_selection(thing.get("spec", {})))
    if kind in _TEMPLATES:
        found.update(_pod(thing, _TEMPLATES[kind]))
    if kind in (CONFIG_MAP, SECRET):
        found.update(_data(kind, thing))
    if before is not None:
        found.update(_changes(kind, thing, before))
    if found:
        listed = "; ".join(f"{where}: {what}" for where, what in found.items())
        raise InvalidError(f'The {kind.name} "{thing["metadata"]["name"]}" is invalid: {listed}', found)


def _metadata(kind: Kind, metadata: Object) -> Iterator[tuple[str, str]]:
    name, longest = metadata["name"], _LONGEST.get(kind, 253)
    pattern = _DNS_LABEL if kind in (NAMESPACE, SERVICE) else _DNS_NAME
    if not isinstance(name, str) or not pattern.fullmatch(name) or len(name) > longest:
        yield (
            "metadata.name",
            f"must be lower case letters, digits, '-'{'' if pattern is _DNS_LABEL else ', and dots'},"
            f" begin and end with a letter or digit, and have at most {longest} characters: {name!r}",
        )
    for part in ("labels", "annotations"):
        for key, value in metadata.get(part, {}).items():
            prefix, _, rest = key.rpartition("/")
            if (
                not _QUALIFIED.fullmatch(rest)
                or len(rest) > 63
                or (prefix and not _DNS_NAME.fullmatch(prefix))
            ):
                yield f"metadata.{part}", f"no valid key: {key!r}"
            if not isinstance(value, str):
                yield f"metadata.{part}[{key}]", "must be a string"
            elif part == "labels" and value and (not _QUALIFIED.fullmatch(value) or len(value) > 63):
                yield (
                    f"metadata.labels[{key}]",
                    "must have at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter"
                    f" or digit: {value!r}",
                )
    owners = metadata.get("ownerReferences", ())
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield "metadata.ownerReferences", "only one reference can have controller set to true"
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield f"metadata.ownerReferences[{index}].{key}", "must not be empty"


def _selection(spec: Object) -> Iterator[tuple[str, str]]:
    wanted, labels = _at(spec, "selector", "matchLabels"), _at(spec, "template", "metadata", "labels")
    if not wanted:
        yield "spec.selector", "Required value"
    elif any(labels.get(key) != value for key, value in wanted.items()):
        yield "spec.template.metadata.labels", "`selector` does not match template `labels`"


def _pod(thing: Object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What makes a template no pod: no container, one without a proper name, a mount of no volume."""
    spec, where = _at(thing, *path), ".".join(path)
    claims = [_at(claim, "metadata") for claim in _list(_at(thing, "spec").get("volumeClaimTemplates"))]
    volumes = [_at(volume).get("name") for volume in [*_list(spec.get("volumes")), *claims]]
    if not _list(spec.get("containers")):
        yield f"{where}.containers", "Required value"
    for part in ("initContainers", "containers"):
        for index, container in enumerate(_list(spec.get(part))):
            here = f"{where}.{part}[{index}]"
            if not _is_label(_at(container).get("name")):
                yield f"{here}.name", "must be a name of lower case letters, digits and '-'"
            for place, mount in enumerate(_list(_at(container).get("volumeMounts"))):
                if (claimed := _at(mount).get("name")) not in volumes:
                    yield f"{here}.volumeMounts[{place}].name", f"Not found: {claimed!r}"


def _data(kind: Kind, thing: Object) -> Iterator[tuple[str, str]]:
    for key, value in thing.get("data", {}).items():
        if not _KEY.fullmatch(key) or len(key) > 253:
            yield f"data[{key}]", "a key has letters, digits, '-', '_' and '.' only"
        if not isinstance(value, str) or (kind == SECRET and not _is_base64(value)):
            yield f"data[{key}]", "must be text in base64" if kind == SECRET else "must be a string"


def _is_label(name: Any) -> bool:
    return isinstance(name, str) and bool(_DNS_LABEL.fullmatch(name)) and len(name) <= 63


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


def _changes(kind: Kind, thing: Object, before: Object) -> Iterator[tuple[str, str]]:
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
