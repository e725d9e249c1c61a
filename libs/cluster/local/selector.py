"""Label selectors, as kubectl spells them: `a=b,c!=d,e in (x,y),f notin (z),g,!h`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from libs.errors import InvalidError

Selector = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)")
_PRESENT = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r",(?![^(]*\))")  # not one inside parentheses


def selector(text: str) -> Selector:
    """What tells whether labels match; "" matches all. InvalidError."""
    terms = [_term(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _term(text: str) -> Selector:
    if found := _SET.fullmatch(text):
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
    raise InvalidError(violations={"labels": f"no label selector: {text!r}"})
