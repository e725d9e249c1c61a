"""Tables for people, and the same as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WIDE = 140  # what is not a terminal has no width of its own


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    out = Console()
    (out if out.is_terminal else Console(width=_WIDE)).print(table)


def write_csv(rows: Sequence[DataclassInstance], path: Path | None) -> None:
    """A line each, after the names of the fields; nothing without a path."""
    if path is None or not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])])
        writer.writeheader()
        writer.writerows(map(asdict, rows))
