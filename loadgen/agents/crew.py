"""Agents of one mode with nothing to do, and the servers that they need: processes of this machine."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from libs.identity import Identity
from libs.pki import Authority

from ..child import ServerError, await_ready, child, free_port
from ..server import Engine, Server
from ..sweep import own_server
from .toolserver import URI

_PATIENCE_SECONDS = 30
_MODEL_CALLS = ("agent_intel_calls_total", "agent_intel_errors_total")


class Mode(StrEnum):
    """What the agents wait for."""

    CLAIM = "claim"  # an item of an empty queue
    REACTIVE = "reactive"  # a change of a resource that does not change
    LOOP = "loop"  # the end of an interval of 30 days


@dataclass(frozen=True)
class Crew:
    """Agents that are ready, and how often they have called anybody until now. What parked calls were is
    known when they are answered."""

    agents: list[subprocess.Popen[bytes]]
    calls: Callable[[], int]


@contextmanager
def crew(mode: Mode, count: int, folder: Path | None, environment: Mapping[str, str]) -> Iterator[Crew]:
    """So many of them, with the servers that they need, gone with the block."""
    with own_server(Engine.MEMORY, folder, environment) as (_, coordination), ExitStack() as stack:
        root = coordination.data.parent
        authority = Authority.load(root / "pki")
        model, tools = free_port(), free_port()
        listen = {**environment, "PROVIDER_LISTEN": f"127.0.0.1:{model}"}
        stack.enter_context(child("services.provider", (), listen, root / "provider.log"))
        if mode is Mode.REACTIVE:
            serves = ("loadgen.agents.toolserver", (str(tools),), environment, root / "tools.log")
            stack.enter_context(child(*serves))
            _await_count(tools)
        agents, ports = [], []
        for number in range(count):
            pod = f"spiffe://{authority.domain}/ns/load/agent/idle/pod/idle-{number}/{secrets.token_hex(8)}"
            identity = authority.issue(pod, root / f"agent-{number}")
            told = _told(mode, identity, model, tools, coordination)
            log, port = root / f"agent-{number}.log", int(told["AGENT_METRICS_PORT"])
            agent = stack.enter_context(child("services.agent", (), {**environment, **told}, log))
            await_ready(agent, port, log)
            agents.append(agent)
            ports.append(port)

        def calls() -> int:
            asked = _count(tools) if mode is Mode.REACTIVE else 0
            return coordination.cost().rpcs + asked + sum(map(_model_calls, ports))

        yield Crew(agents, calls)


def _told(mode: Mode, identity: Identity, model: int, tools: int, coordination: Server) -> dict[str, str]:
    told = {
        "AGENT_MODE": mode.value,
        "AGENT_MODEL": "agentctl-extractive",
        "AGENT_INSTRUCTION": "Summarize.",
        "AGENT_PORT": str(free_port()),
        "AGENT_METRICS_PORT": str(free_port()),
        "AGENTCTL_TLS_DIR": str(identity.folder),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{model}/v1",
    }
    match mode:
        case Mode.CLAIM:
            return told | {
                "AGENT_QUEUE": "load/idle",
                "AGENTCTL_COORDINATION_ADDRESS": coordination.address,
            }
        case Mode.LOOP:
            return told | {"AGENT_LOOP_INTERVAL": "720h"}
        case Mode.REACTIVE:
            server = {"name": "idle", "endpoint": f"http://127.0.0.1:{tools}/mcp", "tags": []}
            return told | {
                "AGENT_SUBSCRIBE": json.dumps([URI]),
                "AGENT_MCP_SERVERS": json.dumps([server]),
            }


def _await_count(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            _count(port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ServerError(f"the tool server did not come up: {error}") from error
            time.sleep(0.05)
        else:
            return


def _model_calls(metrics_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(_MODEL_CALLS))


def _count(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/count", timeout=5) as answer:
        return int(answer.read())
