"""Label selectors, as kubectl spells them: `a=b,c!=d,e in (x,y),f notin (z),g,!h`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from libs.errors import InvalidError

Selector = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)")
_PRESENT = re.compile(rf"(!?)\s*({_KEY})")
_LONGEST = 4096
_SHOWN = 100


def selector(text: str) -> Selector:
    """What tells whether labels match; "" matches all. InvalidError."""
    if len(text) > _LONGEST:
        raise InvalidError(violations={"labels": f"a selector has at most {_LONGEST} characters"})
    terms = [_term(part.strip()) for part in _parts(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _parts(text: str) -> Iterator[str]:
    """What is between the commas that are not inside parentheses."""
    begin, inside = 0, False
    for index, character in enumerate(text):
        if character in "()":
            inside = character == "("
        elif character == "," and not inside:
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def _term(text: str) -> Selector:
    if (found := _SET.fullmatch(text)) and found[3].strip():  # the set may not be empty
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        # a label that is missing is "notin" any set, as in the API server
        return lambda labels: (labels.get(key) in values) == (operator == "in")
    if found := _EQUAL.fullmatch(text):
        key, operator, value = found.groups()
        return lambda labels: (labels.get(key) == value) == (operator != "!=")
    if found := _PRESENT.fullmatch(text):
        absent, key = found.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise InvalidError(violations={"labels": f"no label selector: {text[:_SHOWN]!r}"})
