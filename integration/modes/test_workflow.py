"""Mode workflow: killed in each of its steps, it is completed in the end."""

from __future__ import annotations

from typing import Any

from ..machine import until
from ..scripted import INPUT_TOKENS, Fail, Say
from ..toolserver import ToolServer
from .home import Home

DOCUMENT = """
steps:
- {name: gather, tool: tools.count, arguments: {text: gathered}}
- {name: think, instruction: Think about it.}
- {name: post, tool: tools.count, arguments: {text: "posted: {{steps.think}}"}}
"""


def test_a_workflow_that_is_killed_at_each_step_is_completed(home: Home, tools: ToolServer) -> None:
    spec: dict[str, Any] = {"mode": "workflow", "workflow": {"inline": DOCUMENT}, "runs": {"retries": 3}}
    tools.hold()
    script = home.start("flows", Say("A thought."), tools=tools, **spec)
    until(lambda: tools.held == 1, "it does not gather")
    home.kill("flows")
    until(lambda: tools.held == 0, "the killed one still gathers")

    script.hold()
    tools.release()
    until(lambda: script.held == 1, "it does not think")
    home.kill("flows")
    until(lambda: script.held == 0, "the killed one still thinks")

    until(lambda: script.held == 1, "it does not think again")
    tools.hold()
    script.release()
    until(lambda: tools.held == 1, "it does not post")
    home.kill("flows")
    until(lambda: tools.held == 0, "the killed one still posts")
    tools.release()

    last = home.ended("flows")
    assert (last["outcome"], last["exitCode"], last["reason"]) == ("Succeeded", 0, "completed"), last
    assert (last["inputTokens"], last["steps"]) == (INPUT_TOKENS, 1)  # of the process that completed it
    assert home.codes("flows") == [137, 137, 137, 0]
    assert tools.texts() == ["gathered"] * 3 + ["posted: A thought.", "gathered", "posted: A thought."]
    # A tool is told the run and the step: so it can tell a repetition.
    run_id = tools.calls[0].run_id.removesuffix("/gather")
    assert {call.run_id for call in tools.calls} == {f"{run_id}/gather", f"{run_id}/post"}
    assert run_id


def test_a_step_that_fails_ends_the_workflow_with_its_status(home: Home, tools: ToolServer) -> None:
    home.start(
        "stops", Fail(503), tools=tools, mode="workflow", workflow={"inline": DOCUMENT}, runs={"retries": 0}
    )
    last = home.ended("stops")
    assert (last["exitCode"], last["intent"], last["reason"]) == (4, "retriable", "model"), last
    assert last["message"].startswith("step think: ")
    assert tools.texts() == ["gathered"]
