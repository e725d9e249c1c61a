"""`agentctl-admission validate`: the verdicts on files, without a cluster. The files are the world."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from libs.cluster import Object
from libs.cluster.kinds import OURS
from libs.findings import COLUMNS, Row, complete, documents, exit_code, name_of, one_line, rowed, unjudged
from libs.yamls import YamlError
from libs.yamls import documents as yaml_documents

from . import schema
from .context import Facts, Policy, Reference, needs
from .reading import kind_of, text
from .rules import review

_MOST_BYTES = 16 * 1024 * 1024
_USAGE = 2


class _UsageError(Exception):
    """What was asked for cannot be judged."""


def main(arguments: Sequence[str]) -> int:
    """The command. Its exit code: 0 all allowed, 1 something is denied, 2 usage."""
    said = _parser().parse_args(arguments)
    try:
        images = tuple(filter(None, (each.strip() for each in said.allowed_images.split(","))))
        policy = Policy(images, said.trust_domain)
        things = [thing for path in [*said.files, *said.filename] for thing in _objects(path, said.namespace)]
        if not things:
            raise _UsageError("name files with objects, or - for stdin")
    except (ValueError, OSError, _UsageError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _USAGE
    rows = judged(things, policy)
    if said.output == "json":
        sys.stdout.write(json.dumps(documents(rows), ensure_ascii=False, indent=2) + "\n")
    else:
        sys.stdout.writelines(_table(rows))
    return exit_code(rows)


def judged(things: Sequence[Object], policy: Policy) -> list[Row]:
    """What is said of each, by schema and rules. What only a cluster knows is `not-checked`."""
    world = {
        (kind, text(each, "namespace"), text(each, "name")): each
        for each in things
        if (kind := kind_of(each)) is not None
    }
    return [row for thing in things for row in _rows(thing, policy, world)]


def _rows(thing: Object, policy: Policy, world: Mapping[Any, Object]) -> list[Row]:
    if kind_of(thing) not in OURS:
        return [unjudged(thing)]
    if not text(thing, "name"):
        message, mend = "an apply needs the whole name", "name it; only `kubectl create` takes generateName"
        row = Row(name_of(thing), "denied", "no-name", "metadata.name", message=message, mend=mend)
        return [row]
    wanted = needs(thing)
    found: dict[Reference, Object] = {
        (kind, name): world[kind, wanted.namespace, name]
        for kind, name in wanted.objects
        if (kind, wanted.namespace, name) in world
    }
    facts = Facts(policy, found, schema=schema.check(thing), is_offline=True)
    verdict, name = review(thing, None, facts), name_of(thing)
    denied = [rowed(name, "denied", **asdict(each)) for each in verdict.denials]
    return complete(name, [*denied, *(rowed(name, "warning", **asdict(each)) for each in verdict.warnings)])


def _objects(path: str, namespace: str) -> Iterator[Object]:
    """The objects of a file, each with a namespace. _UsageError, OSError."""
    for number, document in _documents(path):
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        items = document.get("items") if is_list else [document]
        for thing in items if isinstance(items, list) else ():
            metadata = thing.get("metadata") if isinstance(thing, dict) else None
            if not isinstance(metadata, dict) or not isinstance(thing.get("kind"), str):
                raise _UsageError(f"{path}, document {number}: no object with a kind and metadata")
            if kind_of(thing) is not None:
                metadata.setdefault("namespace", namespace)
            yield thing


def _documents(path: str) -> Iterator[tuple[int, Any]]:
    if path == "-":
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _UsageError(f"{path}: more than {_MOST_BYTES} bytes")
    try:
        yield from yaml_documents(data.decode())
    except UnicodeDecodeError as error:
        raise _UsageError(f"{path}: not UTF-8: {error}") from error
    except YamlError as error:
        raise _UsageError(f"{path}, document {error.number}: {error}") from error


def _table(rows: Sequence[Row]) -> Iterator[str]:
    lines = [COLUMNS, *(tuple(map(one_line, row.cells())) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentctl-admission validate",
        description="Says what admission would say of manifests, without a cluster: by the schemas and the "
        "rules. The files are the world: a pool in them is there. What needs a cluster is `not-checked`.",
        epilog="Exit codes: 0 all allowed, 1 something is denied, 2 usage.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON; - is stdin")
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="the same")
    parser.add_argument("-n", "--namespace", default="default", help="of objects that name none")
    parser.add_argument("--allowed-images", default="", metavar="PATTERNS", help="comma separated")
    parser.add_argument("--trust-domain", default="", metavar="DOMAIN", help="for the length of names")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser
