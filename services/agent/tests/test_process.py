"""The agent as a process: its result, its report and its exit code, however it ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from agentctl.agent.v1 import run_pb2
from libs import mesh
from libs.contract import report
from libs.rpc.client import dial
from libs.testing.mesh import Mesh

from .scripted import HANGS, fails, provider, says
from .toolserver import ToolServer, said

PATIENCE = 30.0


@dataclass
class Agent:
    """A process, and how to reach it."""

    folder: Path
    ours: Mesh
    port: int
    process: Process

    async def ended(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to stdout."""
        async with asyncio.timeout(PATIENCE):
            out, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def report(self) -> report.Report:
        found = report.parse((self.folder / "report").read_bytes())
        assert found is not None
        return found

    @asynccontextmanager
    async def steered(self) -> AsyncIterator[pb_grpc.AgentServiceAsyncStub]:
        """As the API server calls it."""
        identity = self.ours.identity("cp/apiserver")
        server = self.ours.principal("agent")
        async with dial(mesh.AGENT, f"127.0.0.1:{self.port}", identity, server=server) as channel:
            yield pb_grpc.AgentServiceStub(channel)


@asynccontextmanager
async def agent(
    folder: Path, mode: str, *arguments: str, base_url: str = "", **settings: str
) -> AsyncIterator[Agent]:
    """Runs while the block does; killed at the end if it is still there."""
    ours, port = Mesh(folder), free_port()
    environment = {
        "AGENTCTL_TLS_DIR": str(ours.identity("agent").folder),
        "AGENT_MODE": mode,
        "AGENT_PORT": str(port),
        "AGENT_METRICS_PORT": "0",
        "AGENT_START_TIMEOUT": "500ms",
        "AGENT_DRAIN_TIMEOUT": "2s",
    }
    if base_url:
        environment |= {"AGENT_MODEL": "m", "OPENAI_BASE_URL": base_url, "AGENT_INSTRUCTION": "Do it."}
    if mode in ("once", "workflow"):
        environment |= {"AGENT_REPORT_FILE": str(folder / "report"), "AGENT_RUN_ID": "job-1"}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT", "OPENAI_"))}
    with (folder / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.agent",
            *arguments,
            env=inherited | environment | settings,
            stdout=PIPE,
            stderr=log,
        )
    try:
        yield Agent(folder, ours, port, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def until_asked(endpoint: Any, count: int) -> None:
    """Returns when the provider has been asked so often by the process."""
    async with asyncio.timeout(PATIENCE):
        while len(endpoint.asked) < count:  # noqa: ASYNC110  (asked by another process)
            await asyncio.sleep(0.01)


async def test_once_says_its_result_and_reports(tmp_path):
    async with (
        provider(says("The answer.")) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url) as it,
    ):
        assert await it.ended() == (0, "The answer.\n")
    told = it.report
    assert (told.run_id, told.status, told.exit_code, told.intent) == ("job-1", "completed", 0, "complete")
    assert (told.agent, told.mode, told.has_result) == ("worker", "once", True)
    assert (told.usage.input_tokens, told.usage.output_tokens, told.usage.steps) == (10, 5, 1)
    assert told.started_at is not None
    assert told.ended_at is not None
    assert told.ended_at > told.started_at
    for line in it.log.splitlines():
        json.loads(line)


@pytest.mark.parametrize(
    ("reply", "settings", "code", "status"),
    [
        (fails(401), {}, 4, "model"),
        (says("half", finish="length"), {}, 3, "too_large"),
        (says("no", finish="content_filter"), {}, 5, "refused"),
        (says("long", tokens=(90, 20)), {"AGENT_MAX_TOKENS": "100"}, 7, "exhausted_tokens"),
        (HANGS, {"AGENT_DEADLINE": "200ms"}, 7, "deadline"),
    ],
)
async def test_how_a_run_ends_is_the_exit_code(tmp_path, reply, settings, code, status):
    async with (
        provider(reply) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, **settings) as it,
    ):
        assert (await it.ended())[0] == code
    assert (it.report.status, it.report.exit_code) == (status, code)
    assert it.report.error


async def test_a_model_that_is_away_is_reported(tmp_path):
    async with agent(tmp_path, "once", base_url=f"http://127.0.0.1:{free_port()}/v1") as it:
        assert await it.ended() == (4, "")
    assert (it.report.status, it.report.exit_code) == ("model", 4)
    assert "model is away" in it.report.error


async def test_a_tool_server_that_is_away_is_reported(tmp_path):
    servers = json.dumps([{"name": "docs", "endpoint": f"http://127.0.0.1:{free_port()}/mcp"}])
    async with (
        provider(says("x")) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, AGENT_MCP_SERVERS=servers) as it,
    ):
        assert await it.ended() == (6, "")
    assert (it.report.status, it.report.exit_code) == ("server", 6)
    assert "docs" in it.report.error


async def test_sigterm_lets_the_run_finish(tmp_path):
    async with (
        provider(HANGS, says("x")) as endpoint,
        agent(
            tmp_path, "once", base_url=endpoint.url, AGENT_MODEL_TIMEOUT="1s", AGENT_DRAIN_TIMEOUT="20s"
        ) as it,
    ):
        await until_asked(endpoint, 1)
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == (0, "x\n")
    assert it.report.status == "completed"


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_run_that_a_drain_cuts_off_has_not_been_done(tmp_path, signals):
    patience = "200ms" if signals == 1 else "1h"
    async with (
        provider(HANGS) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, AGENT_DRAIN_TIMEOUT=patience) as it,
    ):
        await until_asked(endpoint, 1)
        for _ in range(signals):
            it.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)  # two of the same signal at once are one
        assert await it.ended() == (1, "")
    assert (it.report.status, it.report.intent) == ("drained", "retriable")


async def test_a_loop_that_is_told_to_stop_ends_well(tmp_path):
    async with (
        provider(says("x")) as endpoint,
        agent(tmp_path, "loop", base_url=endpoint.url, AGENT_LOOP_INTERVAL="10ms") as it,
    ):
        await until_asked(endpoint, 3)
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == (0, "")


async def test_a_sigterm_while_it_waits_for_its_model_ends_it_at_once(tmp_path):
    url = f"http://127.0.0.1:{free_port()}/v1"
    async with agent(
        tmp_path, "loop", base_url=url, AGENT_LOOP_INTERVAL="1s", AGENT_START_TIMEOUT="10m"
    ) as it:
        async with asyncio.timeout(PATIENCE):
            while "model is away" not in it.log:  # noqa: ASYNC110  (written by another process)
                await asyncio.sleep(0.01)
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == (0, "")


async def test_the_plane_steers_it(tmp_path):
    async with (
        provider(HANGS) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, AGENTCTL_NODE_NAME="n1") as it,
    ):
        await until_asked(endpoint, 1)
        async with it.steered() as stub:
            manifest = (await stub.GetManifest(pb.GetManifestRequest())).manifest
            assert (manifest.mode, manifest.model, manifest.placement.agent) == ("once", "m", "worker")
            assert manifest.placement.node == "n1"
            assert (await stub.GetStatus(pb.GetStatusRequest())).ready
            runs = (await stub.Cancel(pb.CancelRequest(run_id="job-1", reason="not now"))).runs
        assert [(run.id, run.state, run.error) for run in runs] == [
            ("job-1", run_pb2.RUN_STATE_CANCELED, "not now")
        ]
        assert await it.ended() == (5, "")
    assert (it.report.status, it.report.error) == ("cancelled", "not now")


async def test_a_resource_that_changes_is_reacted_to(tmp_path):
    server = ToolServer(resources={"file:///a": "one"})
    async with server.serving(), provider(says("x")) as endpoint:
        servers = json.dumps([{"name": "docs", "endpoint": server.url}])
        async with agent(
            tmp_path,
            "reactive",
            base_url=endpoint.url,
            AGENT_MCP_SERVERS=servers,
            AGENT_SUBSCRIBE='["file:///a"]',
            AGENT_START_TIMEOUT="10s",
        ) as it:
            await until_asked(endpoint, 1)
            await server.change("file:///a", "two")
            await until_asked(endpoint, 2)
            it.process.send_signal(signal.SIGTERM)
            assert (await it.ended())[0] == 0
    assert [asked["messages"][1]["content"][-3:] for asked in endpoint.asked] == ["one", "two"]


async def test_a_workflow_that_is_killed_between_steps_goes_on_where_it_was(tmp_path):
    document = tmp_path / "w.yaml"
    document.write_text("""
        steps:
          - {name: fetch, tool: docs.fetch, arguments: {x: "7"}}
          - {name: summarize, instruction: Summarize.}
          - {name: store, tool: docs.store, arguments: {x: "{{steps.summarize}}"}}
        """)
    written: list[str] = []

    async def fetch(arguments: dict[str, Any]) -> Any:
        return said(f"document {arguments['x']}")

    async def store(arguments: dict[str, Any]) -> Any:
        written.append(arguments["x"])
        return said("stored")

    server = ToolServer(tools={"fetch": fetch, "store": store})
    async with server.serving(), provider(HANGS, says("short")) as endpoint:
        settings = {
            "AGENT_MCP_SERVERS": json.dumps([{"name": "docs", "endpoint": server.url}]),
            "AGENT_WORKFLOW_FILE": str(document),
            "AGENT_STATE_DIR": str(tmp_path),
            "AGENT_START_TIMEOUT": "10s",
        }
        async with agent(tmp_path, "workflow", base_url=endpoint.url, **settings) as it:
            await until_asked(endpoint, 1)
            it.process.kill()
            assert (await it.ended())[0] == -signal.SIGKILL
        async with agent(tmp_path, "workflow", base_url=endpoint.url, **settings) as it:
            assert await it.ended() == (0, "stored\n")
    assert [call.name for call in server.calls] == ["fetch", "store"]
    assert written == ["short"]
    assert endpoint.asked[1]["messages"][1]["content"] == "document 7"
    told = [dict(call.meta or {})["agentctl.dev/run-id"] for call in server.calls]
    assert told == ["job-1/fetch", "job-1/store"]
    assert it.report.status == "completed"
    assert (it.report.usage.tool_calls, it.report.usage.steps) == (2, 1)


async def test_a_workflow_of_tools_asks_no_model(tmp_path):
    document = tmp_path / "w.yaml"
    document.write_text("steps: [{name: ping, tool: docs.ping}, {name: bad, tool: docs.bad}]")

    async def ping(arguments: dict[str, Any]) -> Any:
        return said("pong")

    async def bad(arguments: dict[str, Any]) -> Any:
        return said("no such thing", is_error=True)

    server = ToolServer(tools={"ping": ping, "bad": bad})
    settings = {"AGENT_WORKFLOW_FILE": str(document), "AGENT_START_TIMEOUT": "10s"}
    async with server.serving():
        settings["AGENT_MCP_SERVERS"] = json.dumps([{"name": "docs", "endpoint": server.url}])
        async with agent(tmp_path, "workflow", **settings) as it:
            assert await it.ended() == (1, "")
    assert it.report.status == "failed"
    assert "step bad: tool docs.bad: " in it.report.error
    assert "no such thing" in it.report.error


async def test_capabilities_are_the_manifest(tmp_path):
    async with agent(tmp_path, "once", "--capabilities", base_url=f"http://127.0.0.1:{free_port()}/v1") as it:
        code, out = await it.ended()
    manifest = json.loads(out)
    assert code == 0
    assert (manifest["mode"], manifest["contractVersion"]) == ("once", "1.1")
    assert manifest["placement"]["podUid"] == "uid-worker"


@pytest.mark.parametrize(
    ("arguments", "settings", "code"),
    [
        (["--help"], {}, 0),
        (["--nonsense"], {}, 2),
        (["--capabilities"], {"AGENT_TYPO": "1"}, 2),
        ([], {"AGENT_MODE": "x"}, 2),
    ],
)
async def test_usage(tmp_path, arguments, settings, code):
    async with agent(tmp_path, "once", *arguments, base_url="http://127.0.0.1:9/v1", **settings) as it:
        assert (await it.ended())[0] == code
    assert not (tmp_path / "report").exists()
    assert "AGENT_" in it.log


async def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path):
    async with provider(says("x")) as endpoint, agent(tmp_path, "once", base_url=endpoint.url) as it:
        assert it.process.stdout
        it.process.stdout._transport.close()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            assert await it.process.wait() == 0
    assert it.report.status == "completed"
    assert "cannot write the result" in it.log


@pytest.mark.parametrize(
    ("mode", "settings", "words"),
    [
        ("once", {"AGENT_TYPO": "1"}, "AGENT_TYPO"),
        ("once", {"OPENAI_API_KEY_FILE": "/nonexist"}, "OPENAI_API_KEY_FILE"),
        ("once", {"AGENTCTL_TLS_DIR": "/nonexist"}, "/nonexist"),
        ("workflow", {"AGENT_WORKFLOW_FILE": "/nonexist"}, "AGENT_WORKFLOW_FILE"),
    ],
)
async def test_what_is_wrong_with_the_configuration_is_reported(tmp_path, mode, settings, words):
    async with agent(tmp_path, mode, base_url="http://127.0.0.1:9/v1", **settings) as it:
        assert await it.ended() == (2, "")
    told = it.report
    assert (told.run_id, told.mode, told.status) == ("job-1", mode, "failed")
    assert (told.exit_code, told.intent, words in told.error) == (2, "terminal", True)
    assert words in it.log


@pytest.mark.parametrize("name", ["AGENT_PORT", "AGENT_METRICS_PORT"])
async def test_a_port_that_is_taken_is_one_line(tmp_path, name):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = {name: str(other.getsockname()[1])}
        async with agent(tmp_path, "once", base_url="http://127.0.0.1:9/v1", **taken) as it:
            assert await it.ended() == (1, "")
    assert [line for line in it.log.splitlines() if "cannot listen" in line and taken[name] in line]
    assert "Traceback" not in it.log
    assert (it.report.status, it.report.exit_code) == ("failed", 1)


async def test_a_signal_after_the_outcome_does_not_change_it(tmp_path):
    async with provider(says("x")) as endpoint, agent(tmp_path, "once", base_url=endpoint.url) as it:
        assert it.process.stdout
        async with asyncio.timeout(PATIENCE):
            assert await it.process.stdout.readline() == b"x\n"
            for number in itertools.cycle((signal.SIGTERM, signal.SIGINT)):
                if it.process.returncode is not None:
                    break
                it.process.send_signal(number)
                await asyncio.sleep(0.005)
        assert it.process.returncode == 0


async def test_a_result_that_nobody_reads_is_given_up_at_the_second_signal(tmp_path):
    async with (
        provider(says("x" * 1_000_000)) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, AGENT_DRAIN_TIMEOUT="1h") as it,
    ):
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "report").exists():  # noqa: ASYNC110  (written by another process)
                await asyncio.sleep(0.01)
            async with it.steered() as stub:
                assert (await stub.GetStatus(pb.GetStatusRequest())).ready
            for _ in range(2):
                it.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.1)  # two of the same signal at once are one
            assert await it.process.wait() == 0
    assert it.report.status == "completed"
    assert "nobody has read it" in it.log


async def test_a_result_that_is_read_late_is_whole(tmp_path):
    text = "x" * 1_000_000
    async with (
        provider(says(text)) as endpoint,
        agent(tmp_path, "once", base_url=endpoint.url, AGENT_DRAIN_TIMEOUT="1h") as it,
    ):
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "report").exists():  # noqa: ASYNC110  (written by another process)
                await asyncio.sleep(0.01)
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == (0, text + "\n")
