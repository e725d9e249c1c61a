"""`python -m integration.fronts [page]`: runs both tables, the long way, and writes them into the page."""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from string import ascii_uppercase

from libs.testing.mesh import Mesh

from .attacks import ATTACKS, SLOW, fills_the_server
from .cases import CASES, LONG
from .hostile import Damage, attackers, siege
from .interop import FRONTS, Row, clients, row

_PAGE = Path(__file__).parents[2] / "docs" / "fronts.md"
_CONNECTIONS = 64
"""What the server that is to be filled allows."""


def main() -> None:
    """Everything between `<!-- name -->` and `<!-- /name -->` is replaced; the rest of the page stays."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else _PAGE
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        text = _put(text, "interop", asyncio.run(_interop(Path(folder))))
    text = _put(text, "hostile", _hostile())
    page.write_text(text)


async def _interop(folder: Path) -> str:
    using, missing = clients(folder)
    mesh = Mesh(folder)
    columns = [(client.name, front) for client in using for front in FRONTS]
    lines = [
        f"h2corn {version('h2corn')}, grpcio {version('grpcio')}. {missing}".rstrip(),
        "",
        *_line("case", *(f"{client} → {front}" for client, front in columns), "answers"),
        *_line(*["---"] * (len(columns) + 2)),
    ]
    for case in (*CASES, *LONG):
        cells = await row(mesh, using, case)
        letters = dict(zip(dict.fromkeys(cells.values()), ascii_uppercase, strict=False))
        heard = "; ".join(f"{letter}: {answer}" for answer, letter in letters.items())
        reason = f". {case.differs}" if case.differs else ""
        lines += _line(case.name, *(_letter(cells, letters, column) for column in columns), heard + reason)
    return "\n".join(lines)


def _letter(cells: Row, letters: dict[str, str], column: tuple[str, str]) -> str:
    return next((letters[cell] for key, cell in cells.items() if key == column), "")


def _hostile() -> str:
    lines = [
        *_line(
            "attack",
            "front",
            "size",
            "what became of it",
            "seconds",
            "others: calls served",
            "others: errors",
            "others: p99 before → during, ms",
            "server: CPU s",
            "server: MiB before / peak / after",
        ),
        *_line(*["---"] * 10),
    ]
    sizes = [(attack, large) for attack, _, large in ATTACKS] + list(SLOW)
    with attackers() as pool:
        damages: list[Damage] = []
        for front in FRONTS:
            with tempfile.TemporaryDirectory() as folder, siege(front, Path(folder)) as besieged:
                damages += [besieged.suffer(attack, size, pool) for attack, size in sizes]
            with (
                tempfile.TemporaryDirectory() as folder,
                siege(front, Path(folder), connections=_CONNECTIONS) as besieged,
            ):
                damages.append(besieged.suffer(fills_the_server, _CONNECTIONS + 16, pool))
    for damage in sorted(damages, key=lambda damage: [each.attack for each in damages].index(damage.attack)):
        lines += _line(*_cells(damage))
    return "\n".join(lines)


def _cells(damage: Damage) -> Sequence[str]:
    return (
        damage.attack,
        damage.front,
        f"{damage.size:,}",
        damage.fate,
        f"{damage.seconds:.1f}",
        f"{damage.served:,}",
        str(len(damage.errors)),
        f"{_milliseconds(damage.p99_before)} → {_milliseconds(damage.p99)}",
        f"{damage.cpu_seconds:.1f}",
        f"{damage.memory_before:.0f} / {damage.memory_peak:.0f} / {damage.memory_after:.0f}",
    )


def _milliseconds(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0f}"


def _line(*cells: str) -> Iterable[str]:
    yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _put(text: str, name: str, content: str) -> str:
    """The text with that in place of what is between the marks."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no {begin} … {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


if __name__ == "__main__":
    main()
