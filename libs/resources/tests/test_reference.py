"""The field reference of docs/resources.md says what the schemas say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.resources.crds import DECLARED, crd

_PAGE = (Path(__file__).parents[3] / "docs/resources.md").read_text()
_WORDS = {"string": "text", "array": "list", "object": "map", "integer": "number", "boolean": "true or false"}
_ELSEWHERE = ("podTemplate", "template")  # with a section, or rows, of their own


def rows(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """A row for each field that holds a value, with the words of its schema."""
    for name, field in schema.get("properties", {}).items():
        if name in _ELSEWHERE:
            continue
        inner = field.get("items", field)
        if inner.get("properties"):
            yield from rows(inner, f"{path}{name}{'[]' if 'items' in field else ''}.")
            continue
        kind = _WORDS[field["type"]]
        default = field.get("default")
        said = ", needed" if name in schema.get("required", ()) else ""
        if default is not None:
            said += f", {str(default).lower() if default is False else default} if absent"
        words = " ".join(field["description"].split())
        yield f"| `{path}{name}` | {kind}{said} | {words} |"


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.kind.name)
def test_each_field_has_its_row(declared):
    schema = crd(declared)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    missing = [row for row in rows(schema) if row not in _PAGE]
    assert not missing, "\n".join(missing)
