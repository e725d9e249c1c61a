"""What programs import before they begin."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from .line import Line
from .place import Place

_MODULES = {
    "coordination": "services.coordination.__main__",
    "agent": "services.agent.__main__",
    "provider": "services.provider.__main__",
    "agentctl": "services.cli.__main__",
    "agentctl-loadgen": "loadgen.__main__",
}
_PROGRAMS = {"agentctl": "services.cli", "agentctl-loadgen": "loadgen"}
_IMPORT = """
import json, sys, time
had, began = len(sys.modules), time.process_time()
import {module}
seconds = time.process_time() - began
modules = len(sys.modules) - had
import psutil
print(json.dumps([seconds, modules, psutil.Process().memory_info().rss / 2**20]))
"""


@dataclass(frozen=True)
class Sizes:
    """How often each is imported; the best counts."""

    repeats: int


FULL = Sizes(repeats=5)
QUICK = Sizes(repeats=1)


def measure(place: Place, sizes: Sizes) -> Iterator[Line]:
    """CPU time, modules and memory of a program that has not done anything yet; the best of a few times."""
    bare = min(_run(place, ["-c", "pass"]) for _ in range(sizes.repeats))
    for name, module in _MODULES.items():
        found = [_imported(place, module) for _ in range(sizes.repeats)]
        seconds, modules, mib = min(found)
        program = _PROGRAMS.get(name)
        helped = (
            min(_run(place, ["-m", program, "--help"]) for _ in range(sizes.repeats)) if program else None
        )
        shown = f"; `{name} --help` {1000 * helped:.0f} ms" if helped else ""
        yield Line(
            name=f"imports of {name}",
            store="",
            figure=f"{1000 * seconds:.0f} ms of CPU, {modules} modules, {mib:.1f} MiB{shown}",
            control=f"{1000 * bare:.0f} ms for `python -c pass`" if program else "",
            values={"seconds": seconds, "modules": modules, "mib": mib, "help_seconds": helped},
        )


def _imported(place: Place, module: str) -> tuple[float, int, float]:
    command = [sys.executable, "-c", _IMPORT.format(module=module)]
    done = subprocess.run(command, env=place.environment, capture_output=True, check=True, text=True)
    seconds, modules, mib = json.loads(done.stdout)
    return float(seconds), int(modules), float(mib)


def _run(place: Place, arguments: list[str]) -> float:
    """Seconds of CPU."""
    began = _of_children()
    command = [sys.executable, *arguments]
    subprocess.run(command, env=place.environment, stdout=subprocess.DEVNULL, check=True)
    return _of_children() - began


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
