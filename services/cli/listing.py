"""How objects are printed: tables, documents, names, and changes as lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from .choices import ObjectFormat
from .columns import columns
from .output import one_line, show

if TYPE_CHECKING:
    from libs.cluster.kinds import Kind


def list_of(things: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Objects as one document."""
    return {"apiVersion": "v1", "kind": "List", "items": list(things)}


def dump(document: dict[str, Any], format_: ObjectFormat) -> None:
    """A document as JSON or YAML."""
    if format_ is ObjectFormat.JSON:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True))
    else:
        import yaml

        typer.echo(yaml.safe_dump(document, allow_unicode=True).rstrip())


def print_things(
    kind: Kind,
    things: Sequence[dict[str, Any]],
    format_: ObjectFormat,
    *,
    namespaces: bool,
    single: bool,
    prefix: str = "",
) -> None:
    """Objects of a kind in any format; `prefix` stands before names in a table."""
    match format_:
        case ObjectFormat.JSON | ObjectFormat.YAML:
            dump(things[0] if single else list_of(things), format_)
        case ObjectFormat.NAME:
            for thing in things:
                typer.echo(f"{kind.name.lower()}/{thing['metadata']['name']}")
        case _:
            shown = columns(kind.name, wide=format_ is ObjectFormat.WIDE, namespaces=namespaces)
            rows = (
                [f"{prefix if title == 'NAME' else ''}{cell(thing)}" for title, cell in shown]
                for thing in things
            )
            show([title for title, _ in shown], rows)
    sys.stdout.flush()


class Lines:
    """Changes as lines of a table; what changes nothing in it is not shown."""

    def __init__(self, kind: Kind, namespaces: bool, *, wide: bool) -> None:
        self._columns = columns(kind.name, wide=wide, namespaces=namespaces)
        self._shown: dict[str, list[str]] = {}

    def show(self, verb: str, thing: dict[str, Any]) -> None:
        """A change."""
        cells = [(title, one_line(str(cell(thing)))) for title, cell in self._columns]
        seen = [verb, *(text for title, text in cells if title != "AGE")]
        if self._shown.get(thing["metadata"]["uid"]) != seen:
            self._shown[thing["metadata"]["uid"]] = seen
            typer.echo("  ".join((f"{verb:<8}", *(text for _, text in cells))))
            sys.stdout.flush()
