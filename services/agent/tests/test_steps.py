"""The workflow document: what is refused, and where; what waits for what; what flows where."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from libs import contract
from services.agent.modes.steps import filled, handed, read

CHAIN = """
steps:
  - {name: a, tool: docs.read, arguments: {id: "7"}}
  - {name: b, instruction: Summarize., retries: 2, deadline: 30s}
  - {name: c, instruction: Translate., input: "to German: {{steps.a}}"}
"""
DIAMOND = """
steps:
  - {name: left, instruction: L}
  - {name: right, instruction: R}
  - {name: both, instruction: B, needs: [left, right]}
"""


def test_steps_are_a_chain():
    plan = read(CHAIN.encode())
    assert [step.name for step in plan.steps] == ["a", "b", "c"]
    assert plan.waits == {"a": (), "b": ("a",), "c": ("b",)}
    assert plan.steps[1].within == timedelta(seconds=30)
    assert plan.steps[0].within is None
    assert plan.asks_a_model
    assert plan.servers == {"docs"}


def test_needs_make_a_graph():
    assert read(DIAMOND.encode()).waits == {"left": (), "right": (), "both": ("left", "right")}


def test_json_is_the_same_document():
    data = json.dumps({"steps": [{"name": "a", "instruction": "x"}]})
    assert read(data.encode()).digest == read(b"steps: [{name: a, instruction: x}]").digest
    assert read(data.encode()).digest != read(b"steps: [{name: a, instruction: z}]").digest


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("steps: [", "neither YAML nor JSON"),
        ("steps: []", "$.steps"),
        ("a: b", "unknown field `a`"),
        ("{}", "has 0 documents"),
        ("steps: []\n---\nsteps: []", "has 2 documents"),
        ("steps: [{name: a, instruction: x}]\nloop: 3", "unknown field `loop`"),
        ("steps: [{name: a, instruction: x, need: [b]}]", "unknown field `need` - at `$.steps[0]`"),
        ("steps: [{name: A, instruction: x}]", "$.steps[0].name"),
        ("steps: [{name: a}]", "$.steps[0]: has to have either"),
        ("steps: [{name: a, instruction: x, tool: s.t}]", "$.steps[0]: has to have either"),
        ("steps: [{name: a, tool: s.t, tool: s.u}]", "tool is there twice"),
        ("steps: [{name: a, tool: s.t, arguments: &a {b: *a}}]", "nested deeper"),
        ('steps: [{name: "a\\n", tool: s.t}]', "$.steps[0].name"),
        ('steps: [{name: a, tool: s.t, deadline: "3s\\n"}]', "$.steps[0].deadline"),
        ("steps: [{name: a, tool: nodot}]", "$.steps[0].tool"),
        ("steps: [{name: a, tool: s.t, input: x}]", "$.steps[0].input"),
        ("steps: [{name: a, instruction: x, arguments: {b: 1}}]", "$.steps[0].arguments"),
        (
            "steps: [{name: a, instruction: x}, {name: a, instruction: z}]",
            "$.steps[1].name: there is another",
        ),
        ("steps: [{name: a, instruction: x, needs: [b]}]", "$.steps[0].needs: there is no step b"),
        (
            "steps: [{name: a, instruction: x, needs: [b]}, {name: b, instruction: x, needs: [a]}]",
            "$.steps[0].needs: goes round",
        ),
        ("steps: [{name: a, instruction: x, deadline: soon}]", "$.steps[0].deadline"),
        ("steps: [{name: a, instruction: x, retries: 99}]", "$.steps[0].retries"),
        ("steps: [{name: a, instruction: x, input: '{{steps.b}}'}]", "$.steps[0]: {{steps.b}}"),
        (
            "steps: [{name: a, instruction: x}, {name: b, instruction: x, needs: [], input: '{{steps.a}}'}]",
            "$.steps[1]: {{steps.a}}",
        ),
        ("steps: [{name: a, tool: s.t, arguments: {x: ['{{ steps.a }}']}}]", "$.steps[0]: {{ steps.a }}"),
        (
            "steps: [{name: a, instruction: x}, {name: b, instruction: 'y {{steps.a}}'}]",
            "$.steps[1].instruction: {{steps.a}}",
        ),
        ("steps: [{name: a, instruction: 'x {{ step.b }}'}]", "$.steps[0].instruction: {{ step.b }}"),
        (
            "steps: [{name: a, instruction: x}, {name: b, instruction: z, input: '{{step.a}}'}]",
            "$.steps[1]: {{step.a}}: is not",
        ),
        (
            "steps: [{name: a, instruction: x}, {name: b, tool: s.t, arguments: {x: '{{steps.a|upper}}'}}]",
            "$.steps[1]: {{steps.a|upper}}",
        ),
        (
            "steps: [{name: a, instruction: x}, {name: b, tool: s.t, arguments: {x: '{{Steps.a | upper}}'}}]",
            "is not {{steps.NAME}}",
        ),
    ],
)
def test_a_bad_document_is_refused_with_the_place(document, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(document.encode())


def test_braces_that_name_no_step_are_just_text():
    document = b"steps: [{name: a, instruction: 'Fill in {{name}} and {{step_count}}.'}]"
    assert "{{name}}" in read(document).steps[0].instruction


def test_results_flow_and_are_not_looked_through():
    results = {"a": "one {{steps.b}}", "b": "two"}
    assert filled("<{{steps.a}}|{{ steps.b }}>", results) == "<one {{steps.b}}|two>"
    assert filled({"x": ["{{steps.b}}", 3, None]}, results) == {"x": ["two", 3, None]}


def test_without_an_input_a_step_gets_what_it_waits_for():
    plan = read(DIAMOND.encode())
    assert handed(plan.steps[2], plan.waits["both"], {"left": "l", "right": "r"}) == "left:\nl\n\nright:\nr"
    assert handed(plan.steps[2], ("left",), {"left": "l"}) == "l"
    assert handed(plan.steps[0], (), {}) == ""


def test_the_example_of_the_contract_page_is_one():
    page = (Path(contract.__file__).parent / "page.md").read_text()
    example = page.partition("## The workflow document")[2].partition("```yaml\n")[2].partition("```")[0]
    plan = read(example.encode())
    assert plan.waits == {"fetch": (), "summarize": ("fetch",), "store": ("summarize",)}
