"""Verdicts of admission as people and pipelines read them: one row an object and finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["allowed", "denied", "warning", "not-checked"]

COLUMNS = ("OBJECT", "VERDICT", "RULE", "FIELD", "MESSAGE", "MEND")
_UNCHECKED = frozenset({"not-looked-up", "trifecta-unchecked"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LINE = re.compile(
    r"(?P<field>[^ :'\"]+)(?: (?P<quote>['\"])(?P<value>.*?)(?P=quote))?: "
    r"(?P<message>.*?)(?:; (?P<mend>[^;]*))? \((?P<rule>[a-z][a-z0-9-]*)\)"
)


@dataclass(frozen=True, slots=True)
class Row:
    """What is said of an object."""

    object: str
    """kind/namespace/name."""
    verdict: Verdict
    rule: str = ""
    field: str = ""
    value: str = ""
    message: str = ""
    mend: str = ""

    def cells(self) -> tuple[str, ...]:
        """As a row under COLUMNS."""
        return self.object, self.verdict, self.rule, self.field, self.message, self.mend


def name_of(thing: dict[str, Any]) -> str:
    """The object as rows name it; it has kind and metadata."""
    metadata = thing["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    return "/".join(str(part) for part in (thing["kind"].lower(), metadata.get("namespace"), name) if part)


def row_of(line: str, thing: str, verdict: Verdict) -> Row:
    """A finding as admission writes it in one line: `field 'value': message; mend (rule)`."""
    match = _LINE.fullmatch(line)
    if match is None:
        return Row(thing, verdict, message=line)
    return rowed(
        thing, verdict, **{name: text or "" for name, text in match.groupdict().items() if name != "quote"}
    )


def rowed(thing: str, verdict: Verdict, *, rule: str, field: str, value: str, message: str, mend: str) -> Row:
    """A finding as a row. What admission warns of because it could not ask is not checked."""
    return Row(thing, "not-checked" if rule in _UNCHECKED else verdict, rule, field, value, message, mend)


def complete(thing: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of one object that was judged: it is allowed if nothing denies it."""
    is_denied = any(row.verdict == "denied" for row in rows)
    return [*rows] if is_denied else [Row(thing, "allowed"), *rows]


def unjudged(thing: dict[str, Any]) -> Row:
    """For an object that no rule is about."""
    return Row(name_of(thing), "not-checked", message=f"no rule is about a {thing['kind']}")


def one_line(text: str) -> str:
    """The text as a cell of a table, without what could steer a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def exit_code(rows: Iterable[Row]) -> int:
    """1 if anything is denied, else 0."""
    return int(any(row.verdict == "denied" for row in rows))


def documents(rows: Iterable[Row]) -> list[dict[str, str]]:
    """As JSON."""
    return [asdict(row) for row in rows]
