"""Measures the parts of the bars one after the other, and prints and writes the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import psycopg
from rich.console import Console

from libs.errors import MeshError

from .bars_command import Part
from .bars_table import Bars
from .child import ServerError
from .control import host, sync_rate
from .generator import GeneratorError
from .loops import StuckError
from .server import Engine
from .states import backlog, faults, fresh, idle, imports, load, parked, snapshot
from .states.line import Line
from .states.place import Place
from .tally import Client

_FOREIGN = ("OTEL_", "OPENAI_", "AGENT", "COORDINATION_", "PROVIDER_")  # what we start is set up by us alone
_WIDTH = 220  # columns, where nobody says how many there are


def run(
    parts: Sequence[Part],
    engines: Sequence[Engine],
    environment: Mapping[str, str],
    client: Client,
    quick: bool,
    data_dir: Path | None,
    json: Path | None,
    markdown: Path | None,
) -> bool:
    """Whether everything was measured and all work was done right. A part that fails is said, and the
    next one is measured.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    result = Bars(host(), sync_rate(data_dir), quick)
    inherited = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
    place = Place(data_dir, inherited, lambda text: console.print(text, highlight=False))
    for fact in result.facts:
        place.say(fact)
    began = time.monotonic()
    for part in parts:
        place.say(f"{part} (after {time.monotonic() - began:.0f} s)")
        _measure(part, place, engines, client, quick, result)
    result.seconds = time.monotonic() - began
    console.print(result.table())
    for line in result.lines:
        for wrong in line.violations:
            console.print(f"NOT VERIFIED: {line.name}: {wrong}", style="bold red", highlight=False)
    for failure in result.failures:
        console.print(f"NOT MEASURED: {failure}", style="bold red", highlight=False)
    console.print(result.summary)
    if json:
        result.write_json(json)
    if markdown:
        result.write_markdown(markdown)
    return result.verified


def _measure(
    part: Part, place: Place, engines: Sequence[Engine], client: Client, quick: bool, result: Bars
) -> None:
    try:
        for line in _lines(part, place, engines, client, quick):
            result.lines.append(line)
            place.say(f"  {line.store or '-'} {line.name}: {line.figure}")
    except* (ServerError, GeneratorError, StuckError, MeshError, TimeoutError, psycopg.Error) as group:
        result.failures += [f"{part}: {type(error).__name__} {error}" for error in _leaves(group)]


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _lines(
    part: Part, place: Place, engines: Sequence[Engine], client: Client, quick: bool
) -> Iterator[Line]:
    """A store that a part is not about is left out."""

    def each(measure: Callable[[Engine], Iterator[Line]]) -> Iterator[Line]:
        return chain.from_iterable(map(measure, engines))

    match part:
        case Part.LOAD:
            return load.measure(place, engines, load.QUICK if quick else load.FULL, client)
        case Part.FRONTS if Engine.MEMORY in engines:
            return load.fronts(place, load.QUICK if quick else load.FULL, client)
        case Part.SNAPSHOT if Engine.POSTGRES in engines:
            return snapshot.measure(place, snapshot.QUICK if quick else snapshot.FULL)
        case Part.FRESH if Engine.POSTGRES in engines:
            return fresh.measure(place, fresh.QUICK if quick else fresh.FULL)
        case Part.BACKLOG:
            sizes = backlog.QUICK if quick else backlog.FULL
            return each(lambda engine: backlog.measure(place, engine, sizes))
        case Part.PARKED:
            waits = parked.QUICK if quick else parked.FULL
            return each(lambda engine: parked.measure(place, engine, waits))
        case Part.FAULTS:
            harm = faults.QUICK if quick else faults.FULL
            return each(lambda engine: faults.measure(place, engine, harm))
        case Part.IDLE:
            rests = idle.QUICK if quick else idle.FULL
            return each(lambda engine: idle.coordination(place, engine, rests))
        case Part.IMPORTS:
            return imports.measure(place, imports.QUICK if quick else imports.FULL)
    return iter(())
