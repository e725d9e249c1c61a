"""From the declared classes to the structural schemas of CRDs."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .shape import Rule, Shape

Schema = dict[str, Any]

_SCALARS: dict[Any, str] = {str: "string", int: "integer", bool: "boolean"}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def schema_of(hint: Any, *, defaults: bool = True) -> Schema:
    """The structural schema of a type. Defaults of Python that say nothing (0 of a status, "", []) are no
    defaults there; without `defaults` none is. TypeError for a type that no schema can say."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], defaults)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        (given,) = (argument for argument in arguments if argument is not type(None))
        return schema_of(given, defaults=defaults)
    if origin is list:
        items = schema_of(arguments[0], defaults=defaults)
        return {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"}
    if origin is dict and arguments[1] is Any:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], defaults=defaults)}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint, defaults)
    raise TypeError(f"{hint} has no schema")


def _annotated(base: Any, notes: Sequence[Any], defaults: bool) -> Schema:
    shapes = [note.hint for note in notes if isinstance(note, Shape)]
    schema = schema_of(shapes[0] if shapes else base, defaults=defaults)
    for note in notes:
        if isinstance(note, Meta):
            _add(schema, note)
    return schema


def _add(schema: Schema, meta: Meta) -> None:
    size = _SIZES.get(schema["type"], "")
    said = {
        f"min{size}": meta.min_length or None,
        f"max{size}": meta.max_length,
        "pattern": meta.pattern,
        "minimum": meta.ge,
        "maximum": meta.le,
    }
    schema |= {facet: value for facet, value in said.items() if value is not None}
    extra = dict(meta.extra_json_schema or {})
    rules = schema.get("x-kubernetes-validations", []) + extra.pop("x-kubernetes-validations", [])
    schema |= extra | ({"x-kubernetes-validations": rules} if rules else {})
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)


def _struct(cls: type[msgspec.Struct], defaults: bool) -> Schema:
    hints, docs = get_type_hints(cls, include_extras=True), _field_docs(cls)
    properties: dict[str, Schema] = {}
    required = []
    for field in msgspec.structs.fields(cls):
        schema = schema_of(hints[field.name], defaults=defaults)
        if field.required:
            required.append(field.encode_name)
        elif defaults and (default := _default(field, schema)) is not None:
            schema["default"] = default
        description = docs.get(field.name) or schema.get("description")
        properties[field.encode_name] = ({"description": description} if description else {}) | {
            key: value for key, value in schema.items() if key != "description"
        }
    out: Schema = {"type": "object", "properties": properties}
    if cls.__doc__:
        out = {"description": inspect.cleandoc(cls.__doc__)} | out
    if required:
        out["required"] = required
    rules: Sequence[Rule] = getattr(cls, "rules", ())
    if rules:
        out["x-kubernetes-validations"] = [rule.facet() for rule in rules]
    return out


def _default(field: msgspec.structs.FieldInfo, schema: Schema) -> Any:
    """What stands there when nothing does; None for what Python writes as "", [] or {} and means as absent.
    An object's is written out: the API server holds its rules against the default as it is written."""
    factory = field.default_factory
    if isinstance(factory, type) and issubclass(factory, msgspec.Struct):
        properties = schema["properties"].items()
        return {name: one["default"] for name, one in properties if "default" in one} or None
    return None if field.default in ("", [], {}, msgspec.NODEFAULT) else field.default


@cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """The strings below the fields, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return found


def _field_docs(cls: type) -> dict[str, str]:
    return _module_docs(cls.__module__).get(cls.__name__, {})
