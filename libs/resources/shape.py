"""The words that the declared classes use to say what a Python type cannot: patterns, bounds, lists, rules.

Each becomes a facet of the generated CRD schema. Rules are CEL as Kubernetes evaluates it (`self` is the
value), written in the part of CEL that every implementation has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule and what is said when it does not hold, at `field_path` below the value that it is on."""

    rule: str
    message: str
    field_path: str = ""

    def facet(self) -> dict[str, str]:
        """As x-kubernetes-validations has it."""
        facet = {"rule": self.rule, "message": self.message}
        return facet | {"fieldPath": self.field_path} if self.field_path else facet


@dataclass(frozen=True, slots=True)
class Shape:
    """The schema is that of `hint`; in Python the value stays plain JSON, to be handed on as it is."""

    hint: Any


def ruled(*given: Rule, **facets: Any) -> Meta:
    """Rules on a value, and facets that have no word of their own here."""
    return Meta(extra_json_schema={"x-kubernetes-validations": [rule.facet() for rule in given], **facets})


def text(most: int, pattern: str, message: str) -> Meta:
    """A string of 1 to `most` characters that is as `pattern` (RE2, without a single quote) says, in words
    `message`."""
    rule = Rule(f"self.matches(r'{pattern}')", f"has to be {message}")
    return Meta(min_length=1, max_length=most, extra_json_schema=ruled(rule).extra_json_schema)


def atomic(most: int, least: int = 0) -> Meta:
    """A list that has one owner as a whole."""
    return Meta(min_length=least, max_length=most)


def unique(most: int, least: int = 0) -> Meta:
    """A list without doubles."""
    return Meta(min_length=least, max_length=most, extra_json_schema={"x-kubernetes-list-type": "set"})


def keyed(key: str, most: int, least: int = 0) -> Meta:
    """A list of objects, each under its own `key`, no key twice."""
    facets = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Meta(min_length=least, max_length=most, extra_json_schema=facets)


def one_of(*names: str) -> Rule:
    """Exactly one of the fields is there."""
    fields = ", ".join(f"has(self.{name})" for name in names)
    return Rule(f"[{fields}].exists_one(given, given)", "exactly one of " + ", ".join(names))


def lasting(least: str, most: str) -> Meta:
    """A duration in hours, minutes and seconds, within bounds that are allowed themselves."""
    rule = (
        "self.matches('^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && "
        f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')"
    )
    message = f"has to be a duration of {least} to {most}, such as 30s, 5m, 1h30m"
    return Meta(min_length=2, max_length=18, extra_json_schema=ruled(Rule(rule, message)).extra_json_schema)


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
HOST = r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]+\])"
_PATH_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"

Label = Annotated[str, text(63, f"^{_LABEL}$", "a DNS label: lower case letters, digits and dashes")]
Name = Annotated[str, text(253, rf"^{_LABEL}(\.{_LABEL})*$", "the name of a Kubernetes object")]
Key = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""Of a ConfigMap or a Secret. A plain pattern, since it is deep in lists, where a rule costs too much."""
Url = Annotated[
    str,
    text(
        2048,
        rf"^https?://{HOST}(:[0-9]{{1,5}})?(/[^\s?#]*)?$",
        "an http or https URL without user, query and fragment",
    ),
]
Image = Annotated[
    str,
    text(
        512,
        rf"^({HOST}(:[0-9]{{1,5}})?/)?{_PATH_PART}(/{_PATH_PART})*"
        r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha256:[0-9a-f]{64})?$",
        "an image reference, such as registry.example.com/team/agent:1.2",
    ),
]
Quantity = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$",
        max_length=32,
        extra_json_schema={"x-kubernetes-int-or-string": True},
    ),
]

_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LabelKey = Annotated[str, Meta(min_length=1, max_length=317)]
LabelValue = Annotated[str, Meta(max_length=63, pattern=f"^({_WORD})?$")]
Labels = Annotated[dict[str, LabelValue], Meta(max_length=32)]
