"""Manifests: YAML or JSON documents out of files, folders and stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .output import Exit, FailedError

_SUFFIXES = (".yaml", ".yml", ".json")


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All objects in order; Lists are taken apart. FailedError names the file, the document in it, and what
    is wrong with it."""
    found = [thing for path in paths for source in _sources(path) for thing in _objects(source)]
    if not found:
        raise FailedError("no objects in " + ", ".join(map(str, paths)), Exit.USAGE)
    return found


def _sources(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
    else:
        yield path


def _objects(source: Path) -> Iterator[dict[str, Any]]:
    from libs.yamls import YamlError, documents

    try:
        text = sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
        for number, document in documents(text):
            is_list = isinstance(document, dict) and document.get("kind") == "List"
            for thing in (document.get("items") or ()) if is_list else (document,):
                if wrong := _wrong(thing):
                    raise FailedError(f"{source}, document {number}: {wrong}", Exit.USAGE)
                yield thing
    except UnicodeDecodeError as error:
        raise FailedError(f"{source}: not UTF-8: {error}", Exit.USAGE) from error
    except YamlError as error:
        raise FailedError(f"{source}, document {error.number}: {error}", Exit.USAGE) from error


def _wrong(document: Any) -> str:
    """Why it cannot be an object at all; "" if it can. What it says is judged by whom it is applied to."""
    if not isinstance(document, dict):
        return "a document that is no object"
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            return f"a document without {'a kind' if field == 'kind' else 'an apiVersion'}"
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return f"a {document['kind']} without metadata.name"
    return ""
