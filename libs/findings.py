"""Verdicts of admission as people and pipelines read them: one row an object and finding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from libs.cluster.kinds import AGENT, OURS
from libs.errors import InvalidError

Verdict = Literal["allowed", "denied", "warning", "not-checked"]

COLUMNS = ("OBJECT", "VERDICT", "RULE", "FIELD", "MESSAGE", "MEND")
_UNCHECKED = frozenset({"not-looked-up", "trifecta-unchecked"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LINE = re.compile(
    r"(?P<field>[^ :'\"]+)(?: (?P<quote>['\"])(?P<value>.*?)(?P=quote))?: "
    r"(?P<message>.*?)(?:; (?P<mend>[^;]*))? \((?P<rule>[a-z][a-z0-9-]*)\)"
)
_REFUSED = re.compile(r"((?:Invalid|Unsupported|Duplicate) value): (.*)", re.DOTALL)
_UNKNOWN = re.compile(r'unknown field "([^"]*)"')
_LONGEST_VALUE, _LONGEST_MESSAGE = 80, 1024
_MOST_REFUSALS = 64  # a hostile object has a hundred thousand
_ALIKE = 0.9  # with group names: one letter too many, too few or wrong


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an API server has against the form of an object, by its schema."""

    field: str
    value: str
    message: str
    mend: str


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
        return self.object, self.verdict, self.rule, self.field, masked(self.message), self.mend


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
    """For an object of another kind: no rule is about it, but in our group, or nearly, it is a mistake."""
    version, kind = str(thing.get("apiVersion", "")), thing["kind"]
    group = version.partition("/")[0].lower()[:_LONGEST_VALUE]
    if SequenceMatcher(None, group, AGENT.group).ratio() < _ALIKE:
        return Row(name_of(thing), "not-checked", message=f"no rule is about a {kind}")
    field, value = ("kind", kind) if version == AGENT.api_version else ("apiVersion", version)
    message = f"there is no {shortened(f'{version} {kind}')}"
    mend = f"write {AGENT.api_version} and one of {', '.join(each.name for each in OURS)}"
    return Row(name_of(thing), "denied", "unknown-kind", field, shortened(value), message, mend)


def refusals(error: InvalidError) -> list[Refusal]:
    """What an API server, or who does as it does, said against an object's form."""
    unknown = _UNKNOWN.findall(str(error)) if not error.violations else ()
    mend = "remove it, or correct its name"
    found = [Refusal(shortened(each, _LONGEST_MESSAGE), "", "unknown field", mend) for each in unknown]
    said = error.violations or ({} if found else {"object": str(error)})
    found += [_refusal(field, what) for field, what in said.items()]
    if len(found) > _MOST_REFUSALS:
        rest = Refusal("object", "", f"and {len(found) - _MOST_REFUSALS} more", "mend these first")
        return [*found[:_MOST_REFUSALS], rest]
    return found


def _refusal(field: str, what: str) -> Refusal:
    value, match = "", _REFUSED.fullmatch(what)
    if match:
        with suppress(ValueError):  # a rule on an object says no value
            said, end = json.JSONDecoder().raw_decode(match[2])
            value = shortened(said if isinstance(said, str) else match[2][:end])
            if field.endswith("endpoint") and "@" in match[2][:end]:  # a password, with // before it or not
                value = "***"
            shown = json.dumps(value, ensure_ascii=False) if isinstance(said, str) else value
            what = f"{match[1]}: {shown}{match[2][end:]}"
    message = shortened(what, _LONGEST_MESSAGE)
    return Refusal(shortened(field, _LONGEST_MESSAGE), value, message, "write it as `kubectl explain` says")


def masked(text: str) -> str:
    """The text without what stands between // and @, which may be a user and a password."""
    before, slashes, behind = text.partition("//")
    _, at, rest = behind.rpartition("@")
    return f"{before}{slashes}***@{rest}" if at else text


def shortened(value: object, most: int = _LONGEST_VALUE) -> str:
    """A value as a finding shows it: one line of at most so many characters, without a password."""
    line = " ".join(masked(str(value))[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def one_line(text: str) -> str:
    """The text as a cell of a table, without what could steer a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def exit_code(rows: Iterable[Row]) -> int:
    """1 if anything is denied, else 0."""
    return int(any(row.verdict == "denied" for row in rows))


def documents(rows: Iterable[Row]) -> list[dict[str, str]]:
    """As JSON."""
    return [{name: masked(text) for name, text in asdict(row).items()} for row in rows]
