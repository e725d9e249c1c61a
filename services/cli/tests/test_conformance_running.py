"""The suite on an agent that runs already: it looks, and changes nothing unless it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner, Result

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from libs.identity import Identity
from libs.mesh import AGENT
from libs.rpc.client import dial
from libs.testing.mesh import Mesh

from ..__main__ import app
from ..conformance.world import free_port


@dataclass(frozen=True)
class Running:
    """The wrong agent without a fault, as a process."""

    address: str
    mesh: Mesh

    def conformance(self, identity: Identity, *arguments: str) -> Result:
        words = ["conformance", self.address, "--tls-dir", str(identity.folder), *arguments]
        return CliRunner().invoke(app, words)

    def outcomes(self, role: str, *arguments: str) -> dict[str, dict[str, Any]]:
        result = self.conformance(self.mesh.identity(role), "--agent-id", self.id, "--json", *arguments)
        assert result.exit_code == 0, result.output
        return {each["id"]: each for each in json.loads(result.stdout)["cases"]}

    @property
    def id(self) -> str:
        agent = self.mesh.principal("agent")
        return f"{agent.namespace}/{agent.name}/{agent.pod}/{agent.uid}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    mesh = Mesh(tmp_path)
    port, plain = free_port(), free_port()
    environment = os.environ | {
        "AGENTCTL_TLS_DIR": str(mesh.identity("agent").folder),
        "AGENT_MODE": "loop",
        "AGENT_LOOP_INTERVAL": "1h",
        "AGENT_INSTRUCTION": "Nothing.",
        "AGENT_PORT": str(port),
        "AGENT_METRICS_PORT": str(plain),
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "FAULT": "",
    }
    program = [sys.executable, "-m", "services.cli.tests.wrong_agent"]
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            _await_health(f"http://127.0.0.1:{plain}/readyz", process)
            yield Running(f"127.0.0.1:{port}", mesh)
        finally:
            process.kill()
            process.wait()


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < until, f"{url} does not answer"
            time.sleep(0.05)


async def _told(running: Running) -> list[str]:
    """Names of the events up to now."""
    names: list[str] = []
    identity, server = running.mesh.identity("cp/gateway"), running.mesh.principal("agent")
    async with dial(AGENT, running.address, identity, server=server) as channel:
        stream = pb_grpc.AgentServiceStub(channel).WatchEvents(pb.WatchEventsRequest())
        with anyio.move_on_after(1):
            async for message in stream:
                names.append(message.event.name)  # noqa: PERF401  (kept when the time is over)
    return names


def verdicts(outcomes: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {id: each["verdict"] for id, each in outcomes.items()}


def test_without_verbs_it_only_looks(running: Running) -> None:
    outcomes = running.outcomes("cp/apiserver")
    found = verdicts(outcomes)
    assert "FAIL" not in found.values()
    for id in (
        "MANIFEST-01",
        "MANIFEST-02",
        "STATUS-01",
        "HEALTH-01",
        "AUTH-07",
        "AUTH-18",
        "EVENT-01",
        "METRIC-01",
    ):
        assert found[id] == "PASS", outcomes[id]
    assert "--verbs" in outcomes["VERB-PAUSE-02"]["message"]
    assert "--command" in outcomes["EXIT-01"]["message"]
    changes = ("agent.paused", "agent.lame_duck", "agent.draining")
    told = asyncio.run(_told(running))
    assert told.count("run.started") == 1  # the loop's own
    assert not set(told) & set(changes)


def test_verbs_are_tried_if_allowed_and_reversed(running: Running) -> None:
    outcomes = running.outcomes("cp/apiserver", "--verbs", "--only", "VERB-", "--only", "HEALTH-03")
    found = verdicts(outcomes)
    assert found["VERB-PAUSE-02"] == found["VERB-LAMEDUCK-01"] == found["HEALTH-03"] == "PASS", outcomes
    status = running.outcomes("cp/apiserver", "--only", "STATUS-01", "--only", "HEALTH-01")
    assert set(verdicts(status).values()) == {"PASS"}


def test_who_may_not_steer_is_told_so(running: Running) -> None:
    outcomes = running.outcomes(
        "administrator", "--verbs", "--only", "VERB-PAUSE-02", "--only", "MANIFEST-01"
    )
    assert verdicts(outcomes) == {"MANIFEST-01": "PASS", "VERB-PAUSE-02": "SKIP"}
    assert "only cp/apiserver and cp/gateway may" in outcomes["VERB-PAUSE-02"]["message"]


def test_without_an_id_it_says_whom_it_believes(running: Running) -> None:
    result = running.conformance(running.mesh.identity("cp/gateway"), "--only", "MANIFEST-02")
    assert result.exit_code == 0, result.output
    assert running.mesh.principal("agent").id in result.stderr


def test_another_pod_is_not_believed(running: Running) -> None:
    identity = running.mesh.identity("cp/gateway")
    result = running.conformance(identity, "--agent-id", "demo/worker/worker-0/another", "--only", "MANIFEST")
    assert result.exit_code in (4, 5)
    assert running.address in result.stderr


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    nobody = Running(f"127.0.0.1:{free_port()}", mesh)
    result = nobody.conformance(mesh.identity("cp/gateway"))
    assert result.stderr == f"error: nobody listens at {nobody.address}\n"
    for arguments in ((), ("--agent-id", nobody.id)):
        result = nobody.conformance(mesh.identity("cp/gateway"), "--only", "MANIFEST", *arguments)
        assert result.exit_code == 5, result.output


@pytest.mark.parametrize(
    ("answers", "said"), [(b"HTTP/1.1 200 OK\r\n\r\n", "speaks no TLS"), (b"", "does not answer within 0.5s")]
)
def test_who_answers_no_tls_is_told_from_who_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bytes, said: str
) -> None:
    monkeypatch.setattr("services.cli.conformance.subject._CALL_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                if answers:
                    client.sendall(answers)
                while client.recv(4096):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        mesh = Mesh(tmp_path)
        result = Running(address, mesh).conformance(mesh.identity("cp/gateway"))
    assert result.exit_code == 5
    assert result.stderr.startswith(f"error: {address} {said}")


@pytest.mark.parametrize("id", ["demo/worker", "demo/WORKER/UPPER/x y", "spiffe://mesh.test/cp/gateway"])
def test_an_id_that_is_none_is_usage(tmp_path: Path, id: str) -> None:
    mesh = Mesh(tmp_path)
    nobody = Running("127.0.0.1:9", mesh)
    assert nobody.conformance(mesh.identity("cp/gateway"), "--agent-id", id).exit_code == 2
