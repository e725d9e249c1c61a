"""Server-side apply as pure functions: what a document names, what merging it gives, what removal leaves.

A field is a path: a string for the key of a map, a tuple for the item of a keyed list (its key's values), so
that the two never meet. Lists are keyed where the Kubernetes API says so (`x-kubernetes-list-map-keys` of its
OpenAPI), in our own kinds where the CRDs do; all others are one value.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from libs.cluster import Object
from libs.cluster.kinds import OURS, SCALED_OBJECT, Kind
from libs.errors import InvalidError
from libs.resources.crds import schema_for

Step = str | tuple[str | int, ...]
Path = tuple[Step, ...]
Fields = frozenset[Path]

_ITEM = "[]"
_VALUE = ("",)  # the "key" of a set: the item itself
_EVERYWHERE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("metadata", "ownerReferences"): ("uid",),
    ("metadata", "finalizers"): _VALUE,
}
_BUILT_IN: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "webhooks": ("name",),
}
_CONTAINERS = frozenset({"containers", "initContainers", "ephemeralContainers"})
_DEFAULTS = {"protocol": "TCP"}


class Shape:
    """Which lists of a kind are keyed."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def keys(self, path: Path) -> tuple[str, ...]:
        """The key fields of the list at that path; () for a list that is one value."""
        return _keys(self._kind, tuple(step if isinstance(step, str) else _ITEM for step in path))

    def items(self, path: Path, value: list[Any]) -> dict[Step, Any]:
        """A keyed list as its items by key, in order. InvalidError for one without its key, or two alike."""
        keys, found = self.keys(path), dict[Step, Any]()
        for index, item in enumerate(value):
            step = _step(item, keys)
            if step is None or step in found:
                raise _without_key(spelled(path), index, item, keys)
            found[step] = item
        return found


@cache
def _keys(kind: Kind, path: tuple[str, ...]) -> tuple[str, ...]:
    if found := _EVERYWHERE.get(path):
        return found
    if kind in OURS:
        schema = schema_for(kind)
        for step in path:
            rest = schema.get("additionalProperties", {})
            schema = (
                schema.get("items", {}) if step == _ITEM else schema.get("properties", {}).get(step, rest)
            )
        if schema.get("x-kubernetes-list-type") == "set":
            return _VALUE
        return tuple(schema.get("x-kubernetes-list-map-keys", ()))
    if kind == SCALED_OBJECT or not path:
        return ()
    if path[-1] == "ports":
        return ("port" if _CONTAINERS.isdisjoint(path) else "containerPort", "protocol")
    return _BUILT_IN.get(path[-1], ())


def _step(item: Any, keys: tuple[str, ...]) -> tuple[str | int, ...] | None:
    if keys == _VALUE:
        item = {"": item}
    if not isinstance(item, dict):
        return None
    values = [item.get(key, _DEFAULTS.get(key)) for key in keys]
    known = tuple(value for value in values if isinstance(value, (str, int)) and not isinstance(value, bool))
    return known if len(known) == len(keys) else None


def _without_key(where: str, index: int, item: Any, keys: tuple[str, ...]) -> InvalidError:
    """Why an item has no place of its own in a keyed list."""
    step = _step(item, keys)
    if step is not None:
        shown = item if keys == _VALUE else dict(zip(keys, step, strict=True))
        return InvalidError(violations={f"{where}[{index}]": f"Duplicate value: {json.dumps(shown)}"})
    if keys == _VALUE:
        return InvalidError(violations={f"{where}[{index}]": "must be a string"})
    lacking = [key for key in keys if _step(item, (key,)) is None]
    return InvalidError(violations={f"{where}[{index}].{key}": "Required value" for key in lacking})


def spelled(path: Path) -> str:
    """A path as people write it: spec.containers[agent].image."""
    text = ""
    for step in path:
        text += f".{step}" if isinstance(step, str) else f"[{','.join(str(part) for part in step)}]"
    return text.removeprefix(".")


def without_nulls(value: Any) -> Any:
    """A copy without fields that are null: null says nothing."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def fields(document: Object, shape: Shape) -> Fields:
    """The fields that a document names: its leaves, and each item of a keyed list as such."""
    found: list[Path] = []
    _collect(document, shape, (), found)
    return frozenset(found)


def _collect(value: Any, shape: Shape, path: Path, found: list[Path]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _collect(item, shape, (*path, key), found)
    elif isinstance(value, list) and value and shape.keys(path):
        for step, item in shape.items(path, value).items():
            found.append((*path, step))
            if isinstance(item, dict):
                _collect(item, shape, (*path, step), found)
    elif path:
        found.append(path)


def merged(live: Any, document: Any, shape: Shape, path: Path = ()) -> Any:
    """The live value with what the document says; neither is changed."""
    if isinstance(live, dict) and isinstance(document, dict):
        result = dict(live)
        for key, value in document.items():
            result[key] = merged(live.get(key), value, shape, (*path, key))
        return result
    if isinstance(live, list) and isinstance(document, list) and shape.keys(path):
        mine, theirs = shape.items(path, document), shape.items(path, live)
        both = {
            step: merged(theirs.get(step), mine[step], shape, (*path, step)) if step in mine else theirs[step]
            for step in {**theirs, **mine}
        }
        return [both[step] for step in _ordered(list(theirs), list(mine))]
    return copy.deepcopy(document)


def _ordered(live: list[Step], said: list[Step]) -> list[Step]:
    """All steps: in the order of `said` among themselves, the others where they are.

    The order of a list that two name parts of must settle, or each apply would be a change for the other.
    """
    known, present = set(live), set(said)
    order = iter([step for step in said if step in known])
    followers = dict[Step | None, list[Step]]()  # the new ones, by the known one that they come after
    last: Step | None = None
    for step in said:
        if step in known:
            last = step
        else:
            followers.setdefault(last, []).append(step)
    first, result = followers.pop(None, []), list[Step]()
    for place in live:
        step = place
        if place in present:
            step = next(order)
            result += first  # before the first that is known
            first = []
        result += [step, *followers.get(step, ())]
    return result + first


_MISSING = object()
_END = object()
_Tree = dict[Any, Any]  # paths by their steps, _END where one ends: each list is looked through once


def _tree(paths: Iterable[Path]) -> _Tree:
    tree: _Tree = {}
    for path in paths:
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node[_END] = True
    return tree


def _members(value: Any, path: Path, shape: Shape) -> dict[Any, Any]:
    """What is directly in a map or a keyed list, by step."""
    if isinstance(value, list) and shape.keys(path):
        return shape.items(path, value)
    return value if isinstance(value, dict) else {}


def removed(value: Object, gone: Iterable[Path], keep: Iterable[Path], shape: Shape) -> Object:
    """A copy without the fields `gone`, except those that are in `keep` or lead to one there. It shares what
    is the same.

    A map or list that this empties goes too, as in the API server; and an item of a keyed list that nobody
    names as such, with all that others said of it.
    """
    result: Object = _removed(value, _tree(gone), _tree(keep), (), shape)
    return result


def _removed(value: Any, gone: _Tree, keep: _Tree, path: Path, shape: Shape) -> Any:
    left = dict(_members(value, path, shape))
    for step, below in gone.items():
        if step not in left:
            continue
        kept = keep.get(step)
        holds = kept is not None and (_END in kept if isinstance(step, tuple) else True)
        if _END in below and not holds:
            del left[step]
        elif left[step] not in ({}, []):
            left[step] = _removed(left[step], below, kept or {}, (*path, step), shape)
            if kept is None and left[step] in ({}, []):
                del left[step]
    if isinstance(value, dict):
        return left
    return list(left.values()) if isinstance(value, list) and shape.keys(path) else value


def changed(before: Object, after: Object, paths: Iterable[Path], shape: Shape) -> Fields:
    """Those of the fields that differ between the two. The item of a keyed list as such differs only by being
    there or not."""
    found: list[Path] = []
    _compare(before, after, _tree(paths), (), shape, found)
    return frozenset(found)


def _compare(before: Any, after: Any, tree: _Tree, path: Path, shape: Shape, found: list[Path]) -> None:
    if before is after:
        return
    old, new = _members(before, path, shape), _members(after, path, shape)
    for step, below in tree.items():
        if step is _END:
            continue
        here, was, now = (*path, step), old.get(step, _MISSING), new.get(step, _MISSING)
        if _END in below:
            differs = (was is _MISSING) != (now is _MISSING) if isinstance(step, tuple) else was != now
            if differs:
                found.append(here)
        _compare(was, now, below, here, shape, found)
