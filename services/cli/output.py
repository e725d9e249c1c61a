"""What commands print and how they end: tables for people, JSON for programs, exit codes, one-line errors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

import typer

from libs.state import StateError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console
    from rich.table import Table

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_WIDE = 4096  # what is not a terminal has no width: nothing is cut for it


class Exit(IntEnum):
    """What the command's exit code means."""

    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5


class Format(StrEnum):
    """How to print what was found."""

    TABLE = "table"
    JSON = "json"


class FailedError(Exception):
    """Ends the command with this code and `error: <message>` on stderr."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns what may go wrong in a command into one line on stderr and an exit code."""
    try:
        yield
    except FailedError as error:
        complain(str(error))
        raise typer.Exit(error.code) from error
    except StateError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        raise typer.Exit(Exit.FAILED) from error


def complain(message: str) -> None:
    """One `error:` line on stderr."""
    typer.echo(f"error: {printable(message)}", err=True)


def note(message: str) -> None:
    """A line for people on stderr, where it never mixes with what a program reads."""
    typer.echo(printable(message), err=True)


def warn(message: str) -> None:
    """One `Warning:` line on stderr, as kubectl has it."""
    note(f"Warning: {message}")


def printable(text: str) -> str:
    """The text without what could steer a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The text as one cell of a table."""
    return printable(" ".join(text.split()))


def to_dict(message: Message) -> dict[str, Any]:
    """Protobuf's JSON mapping under the proto's field names, zeros included."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def emit(document: Message | Mapping[str, object], *, stream: bool = False) -> None:
    """One JSON document on stdout; one per line where a command prints many."""
    plain = document if isinstance(document, Mapping) else to_dict(document)
    typer.echo(json.dumps(plain, ensure_ascii=False, indent=None if stream else 2))
    if stream:
        sys.stdout.flush()


def version(asked: bool) -> None:
    """Prints the version and ends the command, if asked to."""
    if asked:
        from importlib import metadata  # a tenth of `--help`

        typer.echo(f"agentctl {metadata.version('agentctl')}")
        raise typer.Exit


def console() -> Console:
    """Stdout as rich sees it."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDE)


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table. A column name that starts with `>` is aligned right; the last column takes the rest."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        table.add_column(
            Text(name.removeprefix(">")),
            justify="right" if name.startswith(">") else "left",
            no_wrap=True,
            min_width=None if last else max((cell_len(row[index]) for row in cells), default=0),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table, or says that there is nothing to print."""
    rows = list(rows)
    if not rows:
        note("nothing found")
        return
    out = console()
    with out.capture() as printed:
        out.print(grid(columns, rows))
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints one thing, a field a line; empty fields are left out."""
    shown = [(name, text) for name, value in pairs if (text := str(value)) != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        typer.echo(f"{name + ':':<{width + 1}}  {one_line(text)}")
