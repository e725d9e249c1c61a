"""The verdict of an API server on an object of our kinds, without one: from the schemas of the CRDs.

In the order of the API server: unknown fields, then defaults, then types and bounds, then, if the object has
the right form, the CEL rules; last the rule on the system namespace. A part that did not change since the old
object is not held against a schema that has changed since (Kubernetes calls it ratcheting).
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, kind_of
from libs.errors import InvalidError
from libs.resources.crds import POLICY_NAME, SYSTEM_RULE, schema_for

if TYPE_CHECKING:
    from cel import Program

_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ANYTHING: Object = {}
_METADATA: Object = {
    "properties": dict.fromkeys(
        (
            "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "labels",
            "annotations", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
            "ownerReferences", "finalizers", "managedFields",
        ),
        _ANYTHING,
    )
}  # fmt: skip
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong at a path. One that `blocks` leaves the rules untried: they count on the form."""

    path: str
    what: str
    blocks: bool = False


class Validator:
    """Judges Agents, AgentFleets, ModelPools and MCPServerSets."""

    def validated(self, thing: Object, old: Object | None = None) -> Object:
        """A new object with defaults. InvalidError, worded as kubectl does, if it may not be so, or if it may
        not follow on `old`. KeyError for a kind that is not ours."""
        kind = kind_of(thing["apiVersion"], thing["kind"])
        schema = schema_for(kind)
        strict = schema | {"properties": schema["properties"] | {"metadata": _METADATA}}
        unknown = [f'unknown field "{path}"' for path in _unknown(thing, strict, "")]
        if unknown:
            whole = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
            raise InvalidError(f"{whole}: strict decoding error: {', '.join(unknown)}")
        out: Object = _defaulted(thing, schema)
        found = findings(out, old, schema)
        if not found and kind in (AGENT, AGENT_FLEET):
            found += _homeless(out)
        if found:
            raise _invalid(kind.name, thing, found)
        return out


def findings(value: Any, old: Any, schema: Object) -> list[Finding]:
    """All that is wrong with a value, or with its change from `old` (None: it is new), by a CRD's schema."""
    before = _ABSENT if old is None else old
    found = list(_form(value, before, schema, ""))
    if not any(finding.blocks for finding in found):
        found += _ruled(value, before, schema, "")
    return found


def _invalid(kind: str, thing: Object, found: list[Finding]) -> InvalidError:
    lines = [f"{finding.path}: {finding.what}" for finding in found]
    listed = lines[0] if len(lines) == 1 else "".join(f"\n* {line}" for line in lines)
    violations = {finding.path: finding.what for finding in found}
    name = thing["metadata"].get("name", "")
    return InvalidError(f'The {kind} "{name}" is invalid: {listed}', violations)


def _homeless(thing: Object) -> Iterator[Finding]:
    if "namespace" not in thing["metadata"]:
        yield Finding("metadata.namespace", "Required value")
        return
    if not _program(SYSTEM_RULE.rule).execute({"object": thing}):
        what = f"ValidatingAdmissionPolicy '{POLICY_NAME}' denied request: {SYSTEM_RULE.message}"
        yield Finding("metadata.namespace", what)


def _unknown(value: Any, schema: Object, path: str) -> Iterator[str]:
    """Paths of fields that the schema does not declare."""
    if schema is _ANYTHING or _is_free(schema):
        return
    if isinstance(value, dict):
        parts, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name in sorted(value):
            part = parts.get(name, rest)
            if part is None:
                yield _below(path, name)
            else:
                yield from _unknown(value[name], part, _below(path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, schema.get("items", {}), f"{path}[{index}]")


def _is_free(schema: Object) -> bool:
    """Whether what is below is the author's, and kept as it is."""
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def _defaulted(value: Any, schema: Object) -> Any:
    """A copy with defaults, and without members that are null."""
    if _is_free(schema):
        return copy.deepcopy(value)
    if isinstance(value, list):
        return [_defaulted(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    parts, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    given = {name: item for name, item in value.items() if item is not None}
    absent = {name: one["default"] for name, one in parts.items() if "default" in one and name not in given}
    return {name: _defaulted(item, parts.get(name, rest)) for name, item in (given | absent).items()}


def _children(value: Any, old: Any, schema: Object, path: str) -> Iterator[tuple[Any, Any, Object, str]]:
    """What is directly in a value, with what it was before, its schema and its path."""
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        parts, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            part = parts.get(name, rest)
            if part is not None:
                yield item, before.get(name, _ABSENT), part, _below(path, name)
    elif isinstance(value, list) and "items" in schema:
        keys = schema.get("x-kubernetes-list-map-keys", ())
        had = {_identity(item, keys): item for item in old} if keys and isinstance(old, list) else {}
        for index, item in enumerate(value):
            yield item, had.get(_identity(item, keys), _ABSENT), schema["items"], f"{path}[{index}]"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _identity(item: Any, keys: Sequence[str]) -> str:
    """What makes an item of a list the same as another: its keys, or all of it."""
    named = {key: item[key] for key in keys if key in item} if keys and isinstance(item, dict) else item
    return json.dumps(named, sort_keys=True, separators=(",", ":"))


def _form(value: Any, old: Any, schema: Object, path: str) -> Iterator[Finding]:
    """Types, bounds, required fields, doubles in lists."""
    if value == old:
        return
    expected = "integer,string" if schema.get("x-kubernetes-int-or-string") else schema["type"]
    got = _TYPES[type(value)]
    if got not in expected.split(","):
        what = f'Invalid value: "{got}": {path} in body must be of type {expected}: "{got}"'
        yield Finding(path, what, blocks=True)
        return
    if isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, int):
        for facet, wrong, word in (
            ("minimum", value < schema.get("minimum", value), "greater"),
            ("maximum", value > schema.get("maximum", value), "less"),
        ):
            if wrong:
                what = f"{path} in body should be {word} than or equal to {schema[facet]}"
                yield Finding(path, f"Invalid value: {value}: {what}")
    elif isinstance(value, list):
        yield from _list(value, schema, path)
    elif isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield Finding(_below(path, name), "Required value", blocks=True)
        yield from _many(value, schema, path, "Properties")
    for child, before, part, where in _children(value, old, schema, path):
        yield from _form(child, before, part, where)


def _text(value: str, schema: Object, path: str) -> Iterator[Finding]:
    shown = json.dumps(value, ensure_ascii=False)
    if value not in schema.get("enum", (value,)):
        allowed = ", ".join(f'"{word}"' for word in schema["enum"])
        yield Finding(path, f"Unsupported value: {shown}: supported values: {allowed}", blocks=True)
    if len(value) > (most := schema.get("maxLength", len(value))):
        yield Finding(path, f"Too long: may not be more than {most} bytes", blocks=True)
    if len(value) < (least := schema.get("minLength", 0)):
        what = f"{path} in body should be at least {least} chars long"
        yield Finding(path, f"Invalid value: {shown}: {what}")
    if not _pattern(schema.get("pattern", "")).search(value):
        yield Finding(path, f"Invalid value: {shown}: {path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            yield Finding(path, f"Invalid value: {shown}: {path} in body must be of type date-time: {shown}")


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """In RE2, $ is the end of the text; in Python it is also before a last newline."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern), re.ASCII)


def _many(value: list[Any] | Object, schema: Object, path: str, unit: str) -> Iterator[Finding]:
    if len(value) > (most := schema.get(f"max{unit}", len(value))):
        noun = "item" if most == 1 else "items"
        yield Finding(path, f"Too many: {len(value)}: must have at most {most} {noun}", blocks=True)


def _list(value: list[Any], schema: Object, path: str) -> Iterator[Finding]:
    yield from _many(value, schema, path, "Items")
    if len(value) < (least := schema.get("minItems", 0)):
        what = f"{path} in body should have at least {least} items"
        yield Finding(path, f"Invalid value: {len(value)}: {what}")
    if schema.get("x-kubernetes-list-type") not in ("set", "map"):
        return
    seen = Counter[str]()
    for index, item in enumerate(value):
        identity = _identity(item, schema.get("x-kubernetes-list-map-keys", ()))
        seen[identity] += 1
        if seen[identity] == 2:
            yield Finding(f"{path}[{index}]", f"Duplicate value: {identity}")


def _ruled(value: Any, old: Any, schema: Object, path: str) -> Iterator[Finding]:
    """What the CEL rules say."""
    if value == old:
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        at = path + rule.get("fieldPath", "")
        if not _holds(rule["rule"], value, old):
            shown = f"{json.dumps(value, ensure_ascii=False)}: " if isinstance(value, str) else ""
            yield Finding(at.lstrip("."), f"Invalid value: {shown}{rule['message']}")
    for child, before, part, where in _children(value, old, schema, path):
        yield from _ruled(child, before, part, where)


def _holds(rule: str, value: Any, old: Any) -> bool:
    """A rule on `oldSelf` is one on a change: without an old value it holds. One that cannot be evaluated for
    this value does not."""
    program = _program(rule)
    is_on_change = "oldSelf" in program.variables()
    if is_on_change and old is _ABSENT:
        return True
    try:
        return bool(program.execute({"self": value, "oldSelf": old} if is_on_change else {"self": value}))
    except RuntimeError:  # such as that of duration('')
        return False


@cache
def _program(rule: str) -> Program:
    """Kubernetes writes a field whose name is a word of CEL as __name__; our CEL takes the name itself."""
    from cel import compile as compiled  # 30 MiB, and most processes have no use for it

    return compiled(re.sub(r"\b__([a-z]+)__\b", r"\1", rule))
