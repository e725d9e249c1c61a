"""What holds of every generated schema, and that the committed CRDs are the generated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from libs.resources.__main__ import files
from libs.resources.crds import DECLARED, crd, schema_for
from libs.resources.schema import schema_of
from libs.resources.shape import Rule, Shape, keyed, ruled, text

_CRDS = Path(__file__).parents[3] / "k8s/base/crds"
_KINDS = [declared.kind for declared in DECLARED]


def _parts(schema, path):
    """Every schema in a schema, and where."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _parts(part, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if below in schema:
            yield from _parts(schema[below], f"{path}.{below}")


def test_the_committed_files_are_the_generated_ones():
    assert {str(path.relative_to(_CRDS)): path.read_text() for path in _CRDS.rglob("*.yaml")} == files()


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_everything_is_bounded(kind):
    """Or the API server could not bound the cost of the rules."""
    for path, part in _parts(schema_for(kind)["properties"]["spec"], "spec"):
        if part.get("type") == "string":
            assert "maxLength" in part or "enum" in part, path
        if part.get("type") == "array":
            assert "maxItems" in part, path
        if part.get("type") == "integer":
            assert "maximum" in part or path.endswith(("tolerationSeconds", "mode")), path
        if "additionalProperties" in part:
            assert "maxProperties" in part, path


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_kubectl_explains_every_field_of_ours(kind):
    for path, part in _parts(schema_for(kind), kind.name):
        if "podTemplate.spec." not in path:  # below are Kubernetes' own words
            for name, below in part.get("properties", {}).items():
                ours = name not in ("apiVersion", "kind", "metadata") and ".metadata" not in path
                assert not ours or below.get("description"), f"{path}.{name}"


def test_conditions_and_names_are_list_maps():
    for kind in _KINDS:
        conditions = schema_for(kind)["properties"]["status"]["properties"]["conditions"]
        assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == (
            "map",
            ["type"],
        )


def test_only_fleets_scale():
    scaling = {one.kind.name: "scale" in crd(one)["spec"]["versions"][0]["subresources"] for one in DECLARED}
    assert scaling == {"Agent": False, "AgentFleet": True, "ModelPool": False, "MCPServerSet": False}


class _Part(msgspec.Struct, rename="camel"):
    """A part."""

    its_name: str


class _Whole(msgspec.Struct, rename="camel", kw_only=True):
    """A whole."""

    rules = (Rule("self.word != 'no'", "not no", ".word"),)

    word: Annotated[str, text(9, "^[a-z]+$", "a word")]
    """In lower
    case."""
    choice: Literal["a", "b"] = "b"
    count: Annotated[int, Meta(ge=1, le=3)] | None = None
    part: _Part | None = None
    raw: Annotated[list[dict[str, Any]], Shape(list[_Part]), keyed("itsName", 4)] = []
    amount: Annotated[str, Meta(extra_json_schema={"x-kubernetes-int-or-string": True})] = ""
    labels: Annotated[dict[str, bool], ruled(Rule("true", "always"))] = {}


def test_a_class_becomes_a_structural_schema():
    part = {
        "description": "A part.",
        "type": "object",
        "properties": {"itsName": {"type": "string"}},
        "required": ["itsName"],
    }
    assert schema_of(_Whole) == {
        "description": "A whole.",
        "type": "object",
        "properties": {
            "word": {
                "description": "In lower case.",
                "type": "string",
                "minLength": 1,
                "maxLength": 9,
                "x-kubernetes-validations": [
                    {"rule": "self.matches(r'^[a-z]+$')", "message": "has to be a word"}
                ],
            },
            "choice": {"type": "string", "enum": ["a", "b"], "default": "b"},
            "count": {"type": "integer", "minimum": 1, "maximum": 3},
            "part": part,
            "raw": {
                "type": "array",
                "items": part,
                "maxItems": 4,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["itsName"],
            },
            "amount": {"x-kubernetes-int-or-string": True},
            "labels": {
                "type": "object",
                "additionalProperties": {"type": "boolean"},
                "x-kubernetes-validations": [{"rule": "true", "message": "always"}],
            },
        },
        "required": ["word"],
        "x-kubernetes-validations": [
            {"rule": "self.word != 'no'", "message": "not no", "fieldPath": ".word"}
        ],
    }


def test_a_status_has_no_defaults():
    assert "default" not in schema_of(_Whole, defaults=False)["properties"]["choice"]


def test_a_type_that_no_schema_can_say():
    with pytest.raises(TypeError, match="has no schema"):
        schema_of(set[str])
