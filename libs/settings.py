"""The environment, read once into a frozen dataclass, strictly.

A field is the variable PREFIX + its name in capitals, or the one that its metadata names
(`field(default=…, metadata={"env": "AGENTCTL_TLS_DIR"})`). The docstring under it is its help. Secrets
come as paths of files; a field that may hold one all the same says `metadata={"secret": True}`.

An unknown variable with our prefix stops the start: a typo is never a silent default. Kubernetes adds such
variables for Services unless a pod sets `enableServiceLinks: false`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import os
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class SettingsError(Exception):
    """The environment is wrong; the message has one line per problem."""


def load(cls: type[T], prefix: str, environ: Mapping[str, str] = os.environ) -> T:
    """The settings that the environment gives. SettingsError names everything that is wrong with it."""
    variables = _variables(cls, prefix)
    problems: list[str] = []
    values: dict[str, object] = {}
    for variable, (field, kind) in variables.items():
        if variable not in environ:
            if _default(field) is dataclasses.MISSING:
                problems.append(f"{variable} is missing: {_allowed(kind)}")
            continue
        try:
            values[field.name] = _parse(kind, environ[variable])
        except ValueError:
            shown = "its value" if field.metadata.get("secret") else repr(environ[variable])
            problems.append(f"{variable}: {shown} is not {_allowed(kind)}")
    suffixes = [name.removeprefix(prefix) for name in variables if name.startswith(prefix)]
    for unknown in sorted(name for name in environ if name.startswith(prefix) and name not in variables):
        near = difflib.get_close_matches(unknown.removeprefix(prefix), suffixes, n=1)
        problems.append(f"{unknown} is not a setting" + (f"; is it {prefix}{near[0]}?" if near else ""))
    if problems:
        raise SettingsError("\n".join(problems))
    try:
        return cls(**values)
    except ValueError as error:  # a rule of the class itself, in __post_init__
        raise SettingsError(str(error)) from error


def describe(cls: type[Any], prefix: str) -> str:
    """What may be set: one paragraph per variable, with type, default and docstring."""
    docs = _docstrings(cls)
    lines = []
    for variable, (field, kind) in _variables(cls, prefix).items():
        default = _default(field)
        shown = "required" if default is dataclasses.MISSING else f"default: {_show(default)}"
        lines.append(f"{variable}  ({_allowed(kind)}; {shown})")
        doc = " ".join(docs.get(field.name, "").split())
        lines += textwrap.wrap(doc, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _variables(cls: type[Any], prefix: str) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    kinds = get_type_hints(cls)
    return {
        field.metadata.get("env", prefix + field.name.upper()): (field, kinds[field.name])
        for field in dataclasses.fields(cls)
        if field.init
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _path(text: str) -> Path:
    if not text:
        raise ValueError  # Path("") would be the working directory
    return Path(text)


def _duration(text: str) -> timedelta:
    if not (match := _DURATION.fullmatch(text)):
        raise ValueError
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError as error:
        raise ValueError from error


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_KINDS: dict[object, tuple[Callable[[str], object], str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (_finite, "a number"),
    bool: (_boolean, "true or false"),
    Path: (_path, "a path"),
    timedelta: (_duration, "a duration such as 300ms, 30s, 5m or 1h"),
    tuple[str, ...]: (_list, "a list, comma separated"),
}
"""Type → how its text is read (or ValueError), and what is allowed in words."""


def _parse(kind: Any, text: str) -> object:
    """ValueError if the text is not of the kind."""
    if get_origin(kind) is Literal:
        options = [str(option) for option in get_args(kind)]
        return get_args(kind)[options.index(text)]
    if present := _present(kind):
        return None if text == "" else _parse(present, text)
    return _KINDS[kind][0](text)


def _allowed(kind: Any) -> str:
    """What may be said, as the end of "it is not …"."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(option) or "or empty" for option in get_args(kind))
    if present := _present(kind):
        return f"{_allowed(present)}, or empty"
    return _KINDS[kind][1]


def _present(kind: Any) -> Any:
    """X for `X | None`, else None."""
    if get_origin(kind) not in (Union, types.UnionType):
        return None
    present, none = get_args(kind)
    return present if none is types.NoneType else None


def shown(length: timedelta) -> str:
    """A duration as it is written in the environment."""
    seconds = length.total_seconds()
    whole = (unit for unit in ("d", "h", "m", "s") if seconds and seconds % _UNITS[unit] == 0)
    unit = next(whole, "ms" if seconds else "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def _show(value: object) -> str:
    if isinstance(value, timedelta):
        return shown(value)
    if isinstance(value, tuple):
        return ",".join(value) or "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return "empty" if value in (None, "") else str(value)


def _docstrings(cls: type[Any]) -> dict[str, str]:
    """Field → the string that follows it in the source, base classes first."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(each):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            match statement, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(doc))),
                ):
                    docs[name] = doc
    return docs
