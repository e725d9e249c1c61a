"""Agents from their declaration to their end: the operator renders, the local home runs the processes, and
what those say at their end is the agent's status."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.cluster import Bearer, Object, controller_of, key_of
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, JOB, MODEL_POOL, POD, kind_of
from libs.cluster.local import open_local
from libs.cluster.local.runner import Runner
from services.operator.identity.attest import Lineage, Rules, agent, as_templated
from services.operator.settings import Settings

from .world import World
from .world import namespace as make_namespace

PYTHON = [sys.executable, "-I", "-S", "-c"]
REPORT = '{"contract_version": "1.0", "run_id": "%s", "status": "%s", "exit_code": 0, "usage": {"steps": 3}}'
BRIDGE = f"""
import http.server, os, pathlib, signal, socket, sys
at, report = os.environ["AGENT_HOST"], os.environ.get("AGENT_REPORT_FILE")
def end(*_):
    if report:
        open(report, "w").write({REPORT!r} % (os.environ["AGENT_RUN_ID"], "refused"))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
def listens():
    with socket.socket() as there:
        return there.connect_ex((at, 8443)) == 0
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/livez" or listens() else 503)
        self.end_headers()
server = http.server.HTTPServer((at, 9090), Answer)
pathlib.Path(os.environ["BRIDGE_SHARED_DIR"], "tls.crt").write_text("certificate of " + at)
server.serve_forever()
"""
FOREIGN = """
import os, pathlib, socket, sys, time
said = dict(zip(sys.argv, sys.argv[1:]))
host, _, port = said["--serve-mcp"].removeprefix("https://").rpartition(":")
assert pathlib.Path(said["--serve-cert"]).read_text() == "certificate of " + host
assert not [name for name in os.environ if name.startswith(("AGENTCTL_T", "OPENAI_"))]
if said["--mode"] == "once":
    sys.exit(5)
there = socket.create_server((host, int(port)))
time.sleep(600)
"""


@dataclass
class Here(World):
    """A world whose pods are processes."""

    def settings(self, replica: str = "operator-0") -> Settings:
        return replace(super().settings(replica), loopback="$(AGENT_HOST)")

    async def ended(self, name: str, reason: str = "") -> Object:
        """The agent's last run once it is over, for that reason, and its exit code is known."""

        async def look() -> Object | None:
            run = ((await self.get(AGENT, name)).get("status") or {}).get("lastRun", {})
            return run if "exitCode" in run and run.get("reason", "") == reason else None

        found: Object = await self.until(look, f"the end of {name}")
        return found

    async def pods(self) -> list[Object]:
        return list((await self.cluster.list(POD, self.namespace)).items)

    async def lineage(self, pod: Object) -> Lineage:
        """The pod with the live objects above it."""
        owners: list[Object] = []
        while owner := controller_of(owners[-1] if owners else pod):
            owners.append(await self.get(kind_of(owner["apiVersion"], owner["kind"]), owner["name"]))
        return Lineage(pod, owners)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with open_local(tmp_path / "home") as cluster:
        await cluster.create(make_namespace("demo"))
        commands = {"python": PYTHON, "agentctl-bridge": [*PYTHON, BRIDGE]}
        runner = Runner(
            cluster, tmp_path / "home", commands=commands, environment={"PATH": os.environ["PATH"]}
        )
        running = asyncio.create_task(runner.run())
        try:
            world = Here(cluster, "demo", tmp_path)
            trust = {"apiVersion": "v1", "kind": CONFIG_MAP.name, "data": {"ca.crt": ""}}
            await cluster.create(trust | {"metadata": {"name": "agentctl-trust", "namespace": "demo"}})
            models = {"endpoint": "https://models.example.com/v1", "models": ["small"]}
            await world.apply(world.thing(MODEL_POOL, "models", models))
            yield world
        finally:
            running.cancel()
            await asyncio.wait([running])


def running_code(code: str) -> Any:
    return {"spec": {"containers": [{"name": "agent", "command": ["python", code]}]}}


def foreign(**spec: Any) -> Any:
    # flags of the agent come after its code, as they come after the entrypoint of an image
    part = {"contract": "agentd-1", "image": "example.com/agentd:1.4.0", "instruction": "Work."}
    return {**part, "model": {"pool": "models"}, "podTemplate": running_code(FOREIGN), **spec}


async def test_a_run_says_at_its_end_why(here: Here):
    code = f"import os\nopen(os.environ['AGENT_REPORT_FILE'], 'w').write({REPORT!r} % ('r', 'deadline'))\n"
    async with here.operator():
        spec = {"podTemplate": running_code(code + "raise SystemExit(7)"), "runs": {"retries": 3}}
        await here.apply(here.agent("a", "once", **spec))
        run = await here.ended("a", "deadline")
    assert (run["outcome"], run["exitCode"], run["intent"], run["steps"]) == ("Failed", 7, "policy", 3)
    assert len(await here.pods()) == 1  # the exit code says not to try again


async def test_a_retry_is_the_same_run(here: Here):
    marker = here.folder / "runs"
    code = (
        "import os, pathlib, sys\n"
        f"ids = pathlib.Path({str(marker)!r})\nids.open('a').write(os.environ['AGENT_RUN_ID'] + ' ')\n"
        "sys.exit(0 if len(ids.read_text().split()) == 2 else 4)"
    )
    async with here.operator():
        await here.apply(here.agent("a", "once", podTemplate=running_code(code), runs={"retries": 1}))
        run = await here.ended("a")
        job = await here.get(JOB, "a")
    assert (run["outcome"], run["exitCode"]) == ("Succeeded", 0)
    assert marker.read_text().split() == [job["metadata"]["uid"]] * 2


async def test_a_run_of_another_contract_ends_with_its_agent_and_its_bridge_reports(here: Here):
    async with here.operator():
        await here.apply(here.agent("a", "once", **foreign()))
        run = await here.ended("a", "refused")
        (pod,) = await here.pods()
    assert (run["outcome"], run["exitCode"], run["steps"]) == ("Failed", 5, 3)
    (bridge,) = pod["status"]["initContainerStatuses"]
    assert bridge["state"]["terminated"]["exitCode"] == 0


async def test_agents_of_another_contract_are_ready_with_their_bridges_and_are_believed(here: Here):
    async with here.operator():
        await here.apply(here.thing(AGENT_FLEET, "f", {"template": foreign(), "scaling": {"minReplicas": 2}}))
        await here.condition(AGENT_FLEET, "f", "Ready", status="True")
        pods = await here.pods()
        assert len(pods) == 2
        for pod in pods:
            lineage = await here.lineage(pod)
            namespace, name = key_of(pod)
            uid = pod["metadata"]["uid"]
            bearer = Bearer(f"system:serviceaccount:{namespace}:default", pod=name, pod_uid=uid)
            granted = agent(bearer, lineage, Rules(), datetime.now(UTC))
            assert granted.path == f"/ns/demo/agent/f/pod/{name}/{uid}"
            assert as_templated(lineage)
