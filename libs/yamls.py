"""YAML as kubectl reads it: what comes out is JSON, however the text looks.

Dates and base 60 are text, keys are text and there once, `yes` and `on` are true. Depth and what aliases may
grow to are bounded, so that no text costs more than its length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # some builds come without libyaml
_DEEPEST = 32  # a protobuf message of a document that is deeper would not be read
_ALIASED = 100_000
_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"
_SIMPLE = frozenset({_PLAIN, *(_TAG + name for name in ("null", "bool", "int", "float"))})
_TEXT = frozenset({_TAG + "str", _TAG + "timestamp"})
_CONTAINERS = frozenset({_TAG + "map", _TAG + "seq"})

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{form: True for word in ("y", "yes", "on", "true") for form in (word, word.title(), word.upper())},
    **{form: False for word in ("n", "no", "off", "false") for form in (word, word.title(), word.upper())},
}
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_WHOLE = re.compile(r"[-+]?(0b[01]+|0o[0-7]+|0x[0-9a-fA-F]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class YamlError(Exception):
    """The text is no YAML, or says what JSON cannot. `number` is the document's, from 1."""

    def __init__(self, why: str, number: int) -> None:
        super().__init__(why)
        self.number = number


class _Nodes(_Parser):  # type: ignore[misc]  # one of two classes
    """Parses, and leaves to us what an unquoted scalar means."""

    yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}  # noqa: RUF012  # as its base has it


def documents(text: str) -> Iterator[tuple[int, Any]]:
    """Each document that is not empty and its number, as JSON. YamlError."""
    sizes = _sizes(text)
    loader = _Nodes(text)
    number = 0
    try:
        for number, size in enumerate(sizes, start=1):
            found = _Document(number, size).plain(loader.get_node()) if loader.check_node() else None
            if found:
                yield number, found
    except yaml.YAMLError as error:  # an alias of nothing
        raise YamlError(_not_yaml(error), number) from error
    finally:
        loader.dispose()


def _sizes(text: str) -> list[int]:
    """How many values each document holds. YamlError where it nests too deep for a parser of nodes, or is
    no YAML."""
    sizes: list[int] = []
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Parser):
            if isinstance(event, yaml.DocumentStartEvent):
                sizes.append(0)
            elif isinstance(event, yaml.NodeEvent):
                sizes[-1] += 1
                depth += isinstance(event, yaml.CollectionStartEvent)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEEPEST:
                raise YamlError(_too_deep(event), len(sizes))
    except yaml.YAMLError as error:
        raise YamlError(_not_yaml(error), max(len(sizes), 1)) from error
    return sizes


def _not_yaml(error: yaml.YAMLError) -> str:
    return f"not YAML: {' '.join(str(error).split())}"


def _too_deep(where: Any) -> str:
    return f"nested deeper than {_DEEPEST} levels, in line {where.start_mark.line + 1}"


class _Document:
    """One document on its way to JSON."""

    def __init__(self, number: int, size: int) -> None:
        self._number = number
        self._left = size + _ALIASED

    def plain(self, node: Any, depth: int = 0) -> Any:
        """What the node says."""
        self._left -= 1
        if self._left < 0:
            raise self._error(node, f"aliases stand for more than {_ALIASED} values")
        if depth > _DEEPEST:  # an alias of what it is in, too
            raise YamlError(_too_deep(node), self._number)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in _CONTAINERS:
            raise self._error(node, f"{node.tag} is nothing that JSON has")
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(each, depth + 1) for each in node.value]
        return self._mapping(node, depth)

    def _mapping(self, node: Any, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _PLAIN and key.value == "<<":
                found = self.plain(value, depth + 1)
                for each in found if isinstance(found, list) else [found]:
                    if not isinstance(each, dict):
                        raise self._error(key, "<< takes mappings only")
                    merged = each | merged
            else:
                name = self._key(key)
                if name in own:
                    raise self._error(key, f"{name} is there twice")
                own[name] = self.plain(value, depth + 1)
        return merged | own

    def _key(self, node: Any) -> str:
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if key is None:
            raise self._error(node, "a key that is no text")
        return key if isinstance(key, str) else str(key).lower()

    def _scalar(self, node: Any) -> Any:
        text = str(node.value)
        if node.tag in _TEXT:
            return text
        if node.tag not in _SIMPLE:
            raise self._error(node, f"{node.tag} is nothing that JSON has")
        if text in _WORDS:
            return _WORDS[text]
        if text.lower().lstrip("+-") in (".inf", ".nan"):
            raise self._error(node, f"{text} is no JSON number")
        return _number(text)

    def _error(self, node: Any, why: str) -> YamlError:
        return YamlError(f"{why}, in line {node.start_mark.line + 1}", self._number)


def _number(text: str) -> Any:
    """The number that a text is, or the text. Beyond 64 bits it is a float, as for kubectl."""
    plain = text.replace("_", "") if text[:1] in "+-0123456789" else text
    is_octal = _OCTAL.fullmatch(plain)
    if len(plain) < 100 and (is_octal or _WHOLE.fullmatch(plain)):
        whole = int(plain, 8 if is_octal else 0)
        return whole if -(2**63) <= whole < 2**64 else float(whole)
    if not _FLOAT.fullmatch(plain):
        return text
    number = float(plain)
    if math.isinf(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
