"""The stand-in as a process: flags, exit codes, model and tool wires, report, modes, drain."""

from __future__ import annotations

import ast
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.testing.agentd.clock import Cron, seconds
from libs.testing.agentd.flags import UsageError
from libs.testing.agentd.options import parse

from .foreign import calls, says
from .lab import PROGRAM, Lab
from .modern import modern_server

TASK = ["--instruction", "x"]
MODEL = ["--intelligence", "https://model:1"]
ENV = {"INSTRUCTION": "x", "AGENT_INTELLIGENCE": "https://model:1"}


@pytest.mark.parametrize(
    "argv",
    [
        MODEL,
        TASK,
        [*TASK, "--intelligence", "http://model:1"],
        [*TASK, *MODEL, "--mode", "reactive"],
        [*TASK, *MODEL, "--mode", "coordinator"],
        [*TASK, *MODEL, "--unknown"],
        [*TASK, *MODEL, "--deadline", "soon"],
        [*TASK, *MODEL, "--shard", "auto/3"],
        [*TASK, *MODEL, "--shard", "3/3"],
        [*TASK, *MODEL, "--mcp", "a=http://tools/mcp"],
        [*TASK, *MODEL, "--serve-mcp", "http://0.0.0.0:8443"],
        [*TASK, *MODEL, "--mcp", "a=https://a", "--mcp", "b=https://b", "--mcp-tags", "b=sensitive,egress"],
    ],
)
def test_what_cannot_be_is_refused_before_anything_happens(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv, {})


def test_a_flag_goes_before_the_environment_and_the_branded_variable_before_the_neutral_one() -> None:
    environ = ENV | {"AGENT_MODEL": "neutral", "AGENTD_MODEL": "branded", "AGENT_MODE": ""}
    assert parse([], environ).model == "branded"
    assert parse(["--model", "flag"], environ).model == "flag"
    assert parse([], environ).mode == "once"  # empty is unset


def test_the_bare_names_are_read_by_the_newer_version_only() -> None:
    bare = {"AGENT_INSTRUCTION": "x", "INTELLIGENCE": "https://model:1"}
    with pytest.raises(UsageError):
        parse([], bare)
    assert parse(["--standin-version", "1.4.0"], bare).endpoints == ("https://model:1",)


def test_each_endpoint_may_have_a_token_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("second\n")
    environ = ENV | {
        "AGENT_INTELLIGENCE": "https://a, https://b",
        "AGENT_INTELLIGENCE_TOKEN": "common",
        "AGENT_INTELLIGENCE_TOKEN_1_FILE": str(tmp_path / "token"),
    }
    assert parse([], environ).tokens == ("common", "second")


def test_it_stands_on_the_standard_library_and_aiohttp_alone() -> None:
    found = set()
    for file in PROGRAM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    assert found - sys.stdlib_module_names == {"aiohttp"}


def test_what_the_stand_in_has_not_it_says() -> None:
    with pytest.raises(UsageError, match="stand-in has no claim routes"):
        parse(["--claim", "queue://q=work"], ENV)
    with pytest.raises(UsageError, match="stand-in has no shards"):
        parse(["--shard", "0/3"], ENV)


def test_durations_and_cron_lines() -> None:
    assert [seconds(text) for text in ("300ms", "5s", "2m", "1h", "7")] == [0.3, 5, 120, 3600, 7]
    monday = datetime(2026, 6, 1, 9, 29, 30, tzinfo=UTC)
    assert Cron("30 9 * * 1-5").wait(monday) == 30
    assert Cron("*/20 * * * *").wait(monday) == 10 * 60 + 30
    assert not Cron("30 9 * * 0").fires(monday)


async def test_a_bad_flag_is_exit_code_2_with_a_message(lab: Lab) -> None:
    agent = await lab.run("--mode", "bad")
    assert await agent.exit() == (2, "")
    assert "bad" in agent.stderr
    assert lab.model.asked == []


async def test_once_writes_the_answer_to_stdout_and_the_events_to_stderr(lab: Lab) -> None:
    agent = await lab.run("--model", "m-1", "--run-id", "r-1")
    assert await agent.exit() == (0, "done\n")
    body = lab.model.asked[0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m-1", 4096, 0.0)
    assert body["tool_choice"] == "auto"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "Do it."
    assert len(body["tools"]) == 11
    assert "Authorization" not in lab.model.headers[0]  # keyless
    assert "traceparent" in lab.model.headers[0]
    line = await agent.event("loop.final")
    assert set(line) >= {"ts", "level", "run_id", "agent_id", "agent_path", "comp", "pid", "trace_id"}
    assert line["run_id"] == "r-1"


@pytest.mark.parametrize(("status", "code"), [(500, 4), (429, 4), (401, 4), (400, 4)])
async def test_a_model_that_refuses_is_exit_code_4_at_once(lab: Lab, status: int, code: int) -> None:
    lab.model.script = [status]
    agent = await lab.run()
    assert (await agent.exit())[0] == code
    assert len(lab.model.asked) == 1


async def test_a_body_without_choices_is_exit_code_4(lab: Lab) -> None:
    lab.model.script = [{"choices": []}]
    assert (await (await lab.run()).exit())[0] == 4


async def test_the_next_endpoint_is_asked_when_the_first_is_away(lab: Lab) -> None:
    agent = await lab.run("--intelligence", f"http://127.0.0.1:9/,{lab.model.url}")
    assert await agent.exit() == (0, "done\n")


async def test_the_newer_version_tries_again_and_sends_clean_names(lab: Lab) -> None:
    lab.model.script = [503, says("late")]
    agent = await lab.run("--standin-version", "1.4.0")
    assert await agent.exit() == (0, "late\n")
    body = lab.model.asked[1]
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 4096
    assert "resource_read" in [tool["function"]["name"] for tool in body["tools"]]


async def test_a_tool_call_goes_to_its_server_with_the_run_s_id(lab: Lab) -> None:
    lab.model.script = [calls("notes.add", text="milk"), says("noted")]
    agent = await lab.run("--mcp", f"notes={lab.tools.url}", "--run-id", "r-2")
    assert await agent.exit() == (0, "noted\n")
    assert lab.tools.methods == [
        *("server/discover", "initialize", "notifications/initialized", "tools/list", "resources/list"),
        "tools/call",
    ]
    params = lab.tools.seen[-1]["params"]
    assert (params["name"], params["arguments"]) == ("notes.add", {"text": "milk"})
    assert params["_meta"]["agent/run_id"] == "r-2"
    assert lab.model.asked[1]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call-1",
        "content": "added",
    }


async def test_a_server_of_the_modern_protocol_is_spoken_to_in_it(lab: Lab) -> None:
    async with modern_server() as (url, bus):
        lab.model.script = [calls("notes.add", text="milk"), says("noted")]
        flags = ("--mcp", f"notes={url}", "--subscribe", "notes://today", "--mode", "reactive")
        agent = await lab.run(*flags)
        await agent.event("subagent.exit")
        context = lab.model.asked[0]["messages"][1]["content"]
        assert context == "The resource notes://today changed. Its current content is: empty"
        assert lab.model.asked[1]["messages"][-1]["content"] == "added milk"
        await bus.update("notes://today")
        await agent.event("subagent.exit", 2)
        agent.process.send_signal(signal.SIGTERM)
        assert (await agent.exit())[0] == 0


@pytest.mark.parametrize("mode", ["once", "reactive"])
async def test_a_tool_server_that_is_away_is_exit_code_6(lab: Lab, mode: str) -> None:
    agent = await lab.run("--mcp", "notes=http://127.0.0.1:9/mcp", "--mode", mode, "--subscribe", "x://y")
    assert (await agent.exit())[0] == 6
    assert lab.model.asked == []


@pytest.mark.parametrize(
    ("flags", "status", "code"),
    [
        (["--max-steps", "2"], "exhausted_steps", 7),
        (["--max-tokens", "150"], "exhausted_tokens", 7),
        (["--deadline", "1ms"], "deadline", 7),
        (["--max-steps", "2", "--budget-exit-code", "42"], "exhausted_steps", 42),
    ],
)
async def test_a_limit_ends_a_run_between_turns(lab: Lab, flags: list[str], status: str, code: int) -> None:
    lab.model.script = [calls("notes.add")]
    report = lab.folder / "report.json"
    agent = await lab.run(*flags, "--report-file", str(report))
    assert (await agent.exit())[0] == code
    body = json.loads(report.read_text())
    assert (body["status"], body["exit_code"]) == (status, 7)


async def test_limits_are_not_looked_at_after_the_last_turn(lab: Lab) -> None:
    agent = await lab.run("--max-tokens", "50")  # the answer takes 100
    assert (await agent.exit())[0] == 0


async def test_the_report_tells_everything_but_the_usage(lab: Lab) -> None:
    report = lab.folder / "report.json"
    agent = await lab.run("--report-file", str(report), "--run-id", "r-3")
    assert (await agent.exit())[0] == 0
    body: dict[str, Any] = json.loads(report.read_text())
    assert body["report_schema"] == "1.0"
    assert (body["run_id"], body["mode"], body["status"]) == ("r-3", "once", "completed")
    assert body["usage"] == {"tokens_in": 0, "tokens_out": 0, "steps": 0, "subagents": 0}
    assert body["distillate_ref"] == "agent://subagent/0/result"
    assert len(body["refusals"]) == 5
    assert "instance" not in body


async def test_a_loop_runs_again_until_it_is_told_to_end(lab: Lab) -> None:
    agent = await lab.run("--mode", "loop", "--interval", "10ms")
    for _ in range(3):
        await lab.model.is_asked()
    agent.process.send_signal(signal.SIGTERM)
    code, out = await agent.exit()
    assert code == 0
    assert out.startswith("done\ndone\n")


async def test_a_drain_lets_the_model_call_in_progress_end(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.run()
    await lab.model.is_asked()
    agent.process.send_signal(signal.SIGTERM)
    await agent.event("proc.shutdown")
    lab.model.going.set()
    assert await agent.exit() == (0, "done\n")


async def test_a_drained_run_that_is_not_at_its_end_is_cancelled_and_the_exit_code_is_0(lab: Lab) -> None:
    lab.model.script = [calls("notes.add")]
    lab.model.going.clear()
    report = lab.folder / "report.json"
    agent = await lab.run("--report-file", str(report))
    await lab.model.is_asked()
    agent.process.send_signal(signal.SIGTERM)
    await agent.event("proc.shutdown")
    lab.model.going.set()
    assert await agent.exit() == (0, "")
    assert json.loads(report.read_text())["status"] == "cancelled"


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_run_that_does_not_end_is_killed_and_the_exit_code_is_0(lab: Lab, signals: int) -> None:
    lab.model.going.clear()
    agent = await lab.run("--drain-timeout", "100ms" if signals == 1 else "5m")
    await lab.model.is_asked()
    agent.process.send_signal(signal.SIGTERM)
    await agent.event("proc.shutdown")
    if signals == 2:
        agent.process.send_signal(signal.SIGTERM)
    assert await agent.exit() == (0, "")
    assert (await agent.event("subagent.signal"))["signal"] == "SIGKILL"


async def test_a_changed_resource_is_read_and_run_and_so_is_every_one_at_the_start(lab: Lab) -> None:
    agent = await lab.run(
        "--mode", "reactive", "--mcp", f"notes={lab.tools.url}", "--subscribe", "notes://today"
    )
    await lab.model.is_asked()
    context = lab.model.asked[0]["messages"][1]["content"]
    assert context == "The resource notes://today changed. Its current content is: first"
    assert lab.model.asked[0]["messages"][2]["content"] == "Do it."
    await agent.event("subagent.exit")
    lab.tools.content = "second"
    for _ in range(3):
        lab.tools.pushes.put_nowait("notes://today")  # within the debounce: one run
    await lab.model.is_asked()
    assert lab.model.asked[1]["messages"][1]["content"].endswith("second")
    await agent.event("subagent.exit", 2)
    agent.process.send_signal(signal.SIGTERM)
    assert (await agent.exit())[0] == 0
    assert lab.tools.methods[-1] == "resources/unsubscribe"
    assert len(lab.model.asked) == 2
