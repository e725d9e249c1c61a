"""What a server's rules let through. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from libs.errors import DeniedError, InvalidError, PreconditionError
from libs.resources.pool import ToolRules

from .sets import Server

_MOST_SAID = 200
_COSTLY = ("$ref", "$dynamicRef", "$recursiveRef", "patternProperties")


class ToolDeniedError(DeniedError):
    """The rules of the server set do not let this agent use the tool; or there is none of that name."""

    reason = "TOOL_DENIED"


class ArgumentsError(InvalidError):
    """The arguments do not satisfy the server set's schema."""

    reason = "ARGUMENTS"


def is_allowed(rules: ToolRules, tool: str) -> bool:
    """Whether a tool of that name may be seen and called."""
    named = rules.allow is None or any(fnmatchcase(tool, each) for each in rules.allow)
    return named and not any(fnmatchcase(tool, each) for each in rules.deny)


def check_call(server: Server, tool: str, arguments: Mapping[str, Any]) -> None:
    """ToolDeniedError, ArgumentsError; PreconditionError if the set's schema cannot be used."""
    if not is_allowed(server.tools, tool):
        raise ToolDeniedError(f"{server.name} has no tool of that name that this agent may use")
    schema = server.arguments.get(tool)
    if schema is None:
        return
    try:
        error = next(_validator(msgspec.json.encode(schema)).iter_errors(dict(arguments)), None)
    except RecursionError:
        raise ArgumentsError(f"the arguments of {tool} are nested too deeply") from None
    if error is not None:
        where = "/".join(str(each) for each in error.absolute_path)[:_MOST_SAID] or "arguments"
        raise ArgumentsError(violations={where: f"does not satisfy {error.validator!r} of the server set"})


@lru_cache(maxsize=1024)
def _validator(encoded: bytes) -> Any:
    """PreconditionError if that is no JSON Schema (2020-12), or one that costs more than to walk it."""
    schema = msgspec.json.decode(encoded)
    try:
        _Validator.check_schema(schema)
    except SchemaError as error:
        raise PreconditionError(f"an argument schema of the server set is wrong: {error.message}") from error
    if found := next((key for key in _keys(schema) if key in _COSTLY), None):
        raise PreconditionError(f"an argument schema of the server set uses {found}, which is not supported")
    return _Validator(schema)


def _keys(node: object) -> Iterator[str]:
    nodes = [node]
    while nodes:
        match nodes.pop():
            case dict() as inner:
                yield from inner
                nodes.extend(inner.values())
            case list() as inner:
                nodes.extend(inner)


def _matches(_: Any, pattern: str, instance: object, __: Any) -> Iterator[ValidationError]:
    """JSON Schema's `pattern`, in time that is linear in the text."""
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("does not match")


def _found(pattern: str, text: str) -> bool:
    return _pattern(pattern).isinstance_python(text)


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> SchemaValidator:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError as error:
        raise PreconditionError("an argument schema of the server set has a bad pattern") from error


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _matches})
