"""The command, as a pod has it: what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager

from aiohttp import ClientConnectorError, ClientSession

from libs.testing.mesh import Mesh
from libs.testing.ports import free_port

from .lab import process, until


@asynccontextmanager
async def bridge(folder, **environ):
    ports = {
        name: str(free_port()) for name in ("AGENT_METRICS_PORT", "BRIDGE_AGENT_PORT", "BRIDGE_FORWARD_PORT")
    }
    told = {
        "AGENTCTL_TLS_DIR": str(Mesh(folder).identity("agent/worker/uid-1").folder),
        "BRIDGE_SHARED_DIR": str(folder / "shared"),
        "AGENT_PORT": "0",
        **ports,
    }
    async with process("services.bridge", **told | environ) as started:
        yield started, int(ports["AGENT_METRICS_PORT"]), int(ports["BRIDGE_AGENT_PORT"]), folder / "shared"


def agentd(port, shared):
    return process(
        "libs.testing.agentd",
        *("--mode", "reactive", "--subscribe", "queue://none", "--instruction", "stand by"),
        *("--serve-mcp", f"https://127.0.0.1:{port}"),
        *("--serve-cert", f"{shared}/tls.crt", "--serve-key", f"{shared}/tls.key"),
        *("--serve-client-ca", f"{shared}/ca.crt"),
        AGENT_INTELLIGENCE="http://127.0.0.1:9/v1/chat/completions",
    )


async def status(port, path):
    try:
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status
    except ClientConnectorError:
        return 0


async def answers(started, port, path):
    """Returns when it says yes. A process that has ended will not."""

    async def look():
        assert started.returncode is None
        return await status(port, path) == 200

    await until(look)


async def test_wrong_settings_are_exit_2_and_say_which(tmp_path):
    words = [sys.executable, "-m", "services.bridge"]
    wrong = {"AGENTCTL_TLS_DIR": str(tmp_path), "AGENT_MCP_SERVERS": "{", "BRIDGE_SHARD": "1"}
    pipe = asyncio.subprocess.PIPE
    for environ, said in (
        (wrong, "BRIDGE_SHARD"),
        ({**wrong, "BRIDGE_SHARD": ""} | {"OPENAI_BASE_URL": "http://far.example/v1"}, "BRIDGE_SHARD"),
        ({"AGENTCTL_TLS_DIR": str(tmp_path), "AGENT_MCP_SERVERS": "{"}, "AGENT_MCP_SERVERS"),
        ({"AGENTCTL_TLS_DIR": str(tmp_path), "OPENAI_BASE_URL": "http://far.example/v1"}, "OPENAI_BASE_URL"),
        ({"AGENTCTL_TLS_DIR": str(tmp_path)}, "tls.crt"),
    ):
        started = await asyncio.create_subprocess_exec(*words, env=environ, stderr=pipe)
        _, errors = await started.communicate()
        assert started.returncode == 2
        assert said in errors.decode()


async def test_it_is_alive_when_all_is_there_that_the_agent_needs_and_ends_with_0(tmp_path):
    async with bridge(tmp_path) as (started, port, _, shared):
        await answers(started, port, "/livez")
        assert {path.name for path in shared.iterdir()} == {"tls.crt", "tls.key", "ca.crt"}
        assert await status(port, "/readyz") == 503
        started.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await started.wait() == 0


async def test_a_bridge_that_was_killed_comes_back_to_its_agent(tmp_path):
    async with bridge(tmp_path) as (started, port, agent_port, shared):
        await answers(started, port, "/livez")
        async with agentd(agent_port, shared):
            await answers(started, port, "/readyz")
            started.kill()
            await started.wait()
            ports = {"AGENT_METRICS_PORT": str(port), "BRIDGE_AGENT_PORT": str(agent_port)}
            async with bridge(tmp_path, **ports) as (again, *_):
                await answers(again, port, "/readyz")  # with another authority than before


async def test_told_to_end_before_its_agent_it_drains_the_agent_first(tmp_path):
    async with bridge(tmp_path) as (started, port, agent_port, shared):
        await answers(started, port, "/livez")
        async with agentd(agent_port, shared) as agent:
            await answers(started, port, "/readyz")
            started.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await agent.wait() == 0
                assert await started.wait() == 0
