"""Mode once: one run, and how it ends, as the object's status says it and as a killed process leaves it."""

from __future__ import annotations

from typing import Any

import pytest

from ..machine import until
from ..scripted import INPUT_TOKENS, OUTPUT_TOKENS, Fail, Reply, Say, Use
from ..toolserver import ToolServer
from .home import Home

ONCE: dict[str, Any] = {"mode": "once", "instruction": "Count, then say so."}
DIFFERENT = [Use("count", {"text": str(number)}) for number in range(9)]
MIB = 1024 * 1024


def used(turns: int) -> dict[str, int]:
    """What the status says of a run that took so many turns with the model."""
    if not turns:
        return {}
    return {"inputTokens": INPUT_TOKENS * turns, "outputTokens": OUTPUT_TOKENS * turns, "steps": turns}


def test_a_run_does_its_work_once_and_again_when_it_is_told_to(home: Home, tools: ToolServer) -> None:
    replies = Use("count", {"text": "one"}), Say("I have counted.")
    home.start("done", *replies, tools=tools, **ONCE)
    last = home.ended("done")
    said = {name: last[name] for name in ("outcome", "exitCode", "intent", "reason")}
    assert said == {"outcome": "Succeeded", "exitCode": 0, "intent": "complete", "reason": "completed"}
    assert used(2).items() <= last.items()
    assert "I have counted." in home.logs("done")
    assert tools.texts() == ["one"]

    home.start("done", *replies, tools=tools, **ONCE, runs={"trigger": "again"})
    assert home.ended("done", runs=2)["reason"] == "completed"
    first, second = tools.calls
    assert first.run_id != second.run_id  # another run, and no repetition of the first


@pytest.mark.parametrize(
    ("name", "replies", "limits", "turns", "code", "intent", "reason"),
    [
        ("refused", [Say("", refusal="I will not.")], {}, 1, 5, "terminal", "refused"),
        ("budget", [Fail(429, "budget_exceeded")], {}, 0, 7, "policy", "exhausted_tokens"),
        ("tokens", DIFFERENT, {"maxTokens": 40}, 3, 7, "policy", "exhausted_tokens"),
        ("steps", DIFFERENT, {"maxSteps": 2}, 2, 7, "policy", "exhausted_steps"),
        ("loops", [Use("count", {"text": "same"})], {}, 5, 3, "policy", "loop_detected"),
        ("cut", [Say("Half an ans", finish="length")], {}, 1, 3, "policy", "too_large"),
        ("large", [Say("x" * (MIB + 1))], {}, 1, 3, "policy", "too_large"),
    ],
)
def test_a_run_that_another_try_would_not_mend_is_not_tried_again(
    home: Home,
    tools: ToolServer,
    name: str,
    replies: list[Reply],
    limits: dict[str, Any],
    turns: int,
    code: int,
    intent: str,
    reason: str,
) -> None:
    script = home.start(name, *replies, tools=tools, **ONCE, limits=limits, runs={"retries": 3})
    last = home.ended(name)
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", code, intent), last
    assert last["reason"] == reason
    assert last["message"]
    assert used(turns).items() <= last.items()
    assert (home.codes(name), len(script.asked)) == ([code], max(turns, 1))
    if reason == "too_large":  # what there is of the answer can be used
        assert ("Half an ans" if name == "cut" else "x" * 1000) in home.logs(name)


def test_a_tool_that_hangs_is_ended_by_the_deadline(home: Home, tools: ToolServer) -> None:
    script = home.start("hangs", Use("hang"), Say(), tools=tools, **ONCE, limits={"deadline": "3s"})
    last = home.ended("hangs")
    assert (last["exitCode"], last["intent"], last["reason"]) == (7, "policy", "deadline"), last
    assert used(1).items() <= last.items()
    assert len(script.asked) == 1
    until(lambda: (tools.held, tools.given_up) == (0, 1), "the call is not taken back")


def test_a_model_that_is_down_is_tried_again_as_often_as_the_manifest_says(home: Home) -> None:
    """Three times by the agent each time, then by the Job."""
    script = home.start("down", Fail(503), **ONCE, runs={"retries": 1})
    last = home.ended("down")
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", 4, "retriable"), last
    assert (last["reason"], "503" in last["message"]) == ("model", True)
    assert (home.codes("down"), len(script.asked)) == ([4, 4], 6)


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_killed_run_is_done_by_the_next_pod_under_the_same_id(
    home: Home, tools: ToolServer, where: str
) -> None:
    name, replies = f"killed-in-{where}", (Use("count"), Say("Done."))
    if where == "tool":
        tools.hold()
    script = home.start(name, *replies, tools=tools, is_held=where == "model", **ONCE, runs={"retries": 1})
    until(lambda: (script.held if where == "model" else tools.held) == 1, "it does not come to its call")
    home.kill(name)
    until(lambda: script.broken_off + tools.given_up == 1, "the killed one still calls")
    script.release()
    tools.release()

    last = home.ended(name)
    assert (last["outcome"], last["exitCode"], last["reason"]) == ("Succeeded", 0, "completed"), last
    assert home.codes(name) == [137, 0]
    assert used(2).items() <= last.items()
    # A tool is told which run calls: so it can tell that the second call is a repetition.
    assert len(tools.calls) == (1 if where == "model" else 2)
    assert len({call.run_id for call in tools.calls}) == 1
    assert tools.calls[0].run_id


def test_a_killed_run_without_retries_has_failed(home: Home) -> None:
    script = home.start("lost", Say(), is_held=True, **ONCE)
    until(lambda: script.held == 1, "it does not ask")
    home.kill("lost")
    last = home.ended("lost")
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", 137, "infra"), last
    assert "reason" not in last  # nobody was left to say
    script.release()


def test_a_model_that_is_nowhere_is_waited_for_and_then_given_up(home: Home) -> None:
    """Applied when the plane began."""
    last = home.ended("forsaken")
    assert (last["exitCode"], last["intent"], last["reason"]) == (4, "retriable", "model"), last
    assert "model is away" in last["message"]
    assert home.codes("forsaken") == [4]
