"""Servers, PostgreSQL, workers and connections killed and cut under load: `verify`, in its short form."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bars import Judgement
from ..child import ServerError
from ..server import Engine
from .line import Line
from .place import Place


@dataclass(frozen=True)
class Sizes:
    """Items, and the seconds after which nothing more is submitted and nothing harmed."""

    items: int
    seconds: float


FULL = Sizes(items=200_000, seconds=40.0)
QUICK = Sizes(items=20_000, seconds=15.0)
_DRAIN_SECONDS = 240.0  # and for the proof


def measure(place: Place, engine: Engine, sizes: Sizes) -> Iterator[Line]:
    """One run against the store. The long form, at least a million items, is a command of its own."""
    with tempfile.TemporaryDirectory(prefix="agentctl-faults-") as scratch:
        told = Path(scratch) / "outcome.json"
        options = ["--store", engine.value, "--items", str(sizes.items), "--duration", str(sizes.seconds)]
        options += ["--calm", "1"]  # a short run has no time to lose
        where = ["--data-dir", str(place.folder)] if place.folder else []
        try:
            done = subprocess.run(
                [sys.executable, "-m", "loadgen", "verify", "--faults", *options, *where, "--json", told],
                env=place.environment,
                capture_output=True,
                text=True,
                timeout=sizes.seconds + _DRAIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"verify --store {engine.value} did not end in time") from error
        if not told.exists():
            raise ServerError(f"verify said nothing, exit code {done.returncode}: {done.stderr[-1000:]}")
        (outcome,) = json.loads(told.read_text())
    yield line_of(engine, outcome, clean=done.returncode == 0)


def line_of(engine: Engine, outcome: dict[str, Any], *, clean: bool) -> Line:
    """What `verify` wrote down, as a line of the table."""
    faults: dict[str, int] = outcome["faults"]
    found: dict[str, int] = outcome["violations"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    total = sum(found.values())
    return Line(
        name="kill -9, cut and frozen connections, in a loop under load",
        store=engine.value,
        figure=f"{total} violations in {outcome['accepted']:,} items under {sum(faults.values())} faults",
        limits=(
            Judgement("0 lost, 0 double grants, 0 double settles", clean and bool(faults) and not found),
        ),
        notes=(kinds or "it was over before the first fault, so nothing is shown",),
        violations=tuple(f"{kind} ({count} times)" for kind, count in found.items()),
        values={"accepted": outcome["accepted"], "faults": faults, "violations": found},
    )
