"""The workflow document: its steps, and which waits for which. Pure.

    steps:
      - name: fetch
        tool: docs.read
        arguments: {id: "7"}
      - name: summarize
        instruction: Summarize this.
        input: "{{steps.fetch}}"
        retries: 2
        deadline: 30s

Steps run one after the other, unless one of them says `needs`: then each waits for those that it names, and
for no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from libs.yamls import YamlError, documents

_MOST_BYTES = 256 * 1024
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PLACE = re.compile(r"\{\{\s*steps\.([^{}\s]*)\s*\}\}")
_LIKE_A_PLACE = re.compile(r"\{\{\s*steps?\b[^{}]*\}\}", re.IGNORECASE)

_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]
_Words = Annotated[str, Meta(min_length=1, max_length=65536, pattern=r"\S")]


class Step(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One step: an instruction for the model, or a call of a tool."""

    name: _Name
    instruction: _Words = ""
    tool: Annotated[str, Meta(max_length=256, pattern=r"^[a-z0-9-]+\..+\Z")] = ""
    """`server.tool`."""
    arguments: dict[str, Any] = {}
    """Of the tool. Text in them may hold placeholders."""
    needs: Annotated[list[_Name], Meta(max_length=64)] | None = None
    input: Annotated[str, Meta(max_length=262144)] | None = None
    """What the instruction is done with. Absent: the results of the steps that this one waits for."""
    retries: Annotated[int, Meta(ge=0, le=20)] = 0
    """Tries after the first that failed."""
    deadline: Annotated[str, Meta(pattern=r"^[0-9]{1,6}(ms|s|m|h)\Z")] = ""
    """The longest that one try may take."""

    @property
    def within(self) -> timedelta | None:
        """The deadline; None: there is none."""
        if not self.deadline:
            return None
        number = re.match("[0-9]+", self.deadline)
        assert number is not None
        return int(number[0]) * timedelta(seconds=_UNITS[self.deadline[number.end() :]])


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    steps: Annotated[list[Step], Meta(min_length=1, max_length=64)]


class Plan:
    """A document that can be done: `steps` in its order, and the names that each waits for."""

    def __init__(self, steps: Sequence[Step], waits: Mapping[str, Sequence[str]], digest: str) -> None:
        self.steps = steps
        self.waits = waits
        self.digest = digest

    @property
    def asks_a_model(self) -> bool:
        return any(step.instruction for step in self.steps)

    @property
    def servers(self) -> set[str]:
        """Whose tools are called."""
        return {step.tool.partition(".")[0] for step in self.steps if step.tool}


def read(data: bytes) -> Plan:
    """The plan of a document, YAML or JSON. ValueError says what is wrong with it, and where."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"is {len(data)} bytes; {_MOST_BYTES} are allowed")
    try:
        found = [document for _, document in documents(data.decode())]
        if len(found) != 1:
            raise ValueError(f"has {len(found)} documents that are not empty; one is needed")
        document = msgspec.convert(found[0], _Document)
    except YamlError as error:
        raise ValueError(f"is neither YAML nor JSON: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    steps = document.steps
    names = [step.name for step in steps]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise ValueError(f"$.steps[{n}].name: there is another {name}")
    waits = _waits(steps)
    for n, step in enumerate(steps):
        if problem := _problem(step, waits):
            raise ValueError(f"$.steps[{n}]{problem}")
    return Plan(steps, waits, sha256(msgspec.json.encode(document)).hexdigest())


def filled(value: Any, results: Mapping[str, str]) -> Any:
    """The value, with results in the place of placeholders. What is in a result stays as it is."""
    match value:
        case str():
            return _PLACE.sub(lambda place: results[place[1]], value)
        case dict():
            return {name: filled(each, results) for name, each in value.items()}
        case list():
            return [filled(each, results) for each in value]
        case _:
            return value


def handed(step: Step, waits: Sequence[str], results: Mapping[str, str]) -> str:
    """What the step's instruction is done with."""
    if step.input is not None:
        return str(filled(step.input, results))
    if len(waits) == 1:
        return results[waits[0]]
    return "\n\n".join(f"{name}:\n{results[name]}" for name in waits)


def _waits(steps: Sequence[Step]) -> dict[str, Sequence[str]]:
    if any(step.needs is not None for step in steps):
        return {step.name: tuple(step.needs or ()) for step in steps}
    names = [step.name for step in steps]
    return {name: tuple(names[max(n - 1, 0) : n]) for n, name in enumerate(names)}


def _problem(step: Step, waits: Mapping[str, Sequence[str]]) -> str:
    if bool(step.instruction) == bool(step.tool):
        return ": has to have either an instruction or a tool"
    if step.tool and step.input is not None:
        return ".input: goes with an instruction; a tool has arguments"
    if step.instruction and step.arguments:
        return ".arguments: go with a tool"
    if found := _LIKE_A_PLACE.search(step.instruction):
        return f".instruction: {found[0]}: is filled in only in input and arguments"
    for name in waits[step.name]:
        if name not in waits:
            return f".needs: there is no step {name}"
    try:
        order = tuple(TopologicalSorter(_closure(step.name, waits)).static_order())
    except CycleError as error:
        return f".needs: goes round in a circle: {', '.join(error.args[1])}"
    texts = _texts([step.input, step.arguments])
    for found in chain.from_iterable(map(_LIKE_A_PLACE.finditer, texts)):
        if (place := _PLACE.fullmatch(found[0])) is None:
            return f": {found[0]}: is not {{{{steps.NAME}}}}"
        if place[1] not in order or place[1] == step.name:
            return f": {found[0]}: it does not wait for a step {place[1]}"
    return ""


def _closure(name: str, waits: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    ahead = [name]
    while ahead:
        each = ahead.pop()
        if each in waits and each not in found:
            found[each] = waits[each]
            ahead += waits[each]
    return found


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for each in value.values() for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
        case _:
            return []
