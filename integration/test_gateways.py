"""Models and tools through the gateways of `agentctl up`: whose calls they are, what they cost, and the key
that no agent has."""

from __future__ import annotations

import json
import ssl
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from agentctl.mcpgateway.v1 import mcpgateway_service_pb2 as mcp_pb
from agentctl.mcpgateway.v1.mcpgateway_service_pb2_grpc import McpGatewayServiceStub
from libs.errors import DeniedError
from libs.identity import Identity, Principal
from libs.mesh import MCP_GATEWAY
from libs.rpc.client import dial

from .machine import FLEET, NAMESPACE, QUEUE, Machine, until
from .scripted import Say, Use, scripted
from .toolserver import toolserver

KEY = "sk-of-nobody-0123456789"
MODEL = "agentctl-extractive"
DOCUMENT = " ".join(f"Sentence {n} says that things go on as they did before." for n in range(80))

NAMESPACED = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
"""
ONE_CALL = """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: small, namespace: demo}
spec:
  models: [agentctl-extractive]
  budgets: [{per: pool, window: 8760h, tokens: 6000}]  # reserved by a call: about 5300, used: about 1200
"""
WITH_A_KEY = """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: openai, namespace: demo}
spec:
  models: [agentctl-extractive]
  endpoints:
  - name: first
    url: URL
    credential: {secretRef: {name: openai, key: api-key}}
"""


def fleet(name: str, pool: str, more: str = "") -> str:
    """A fleet of one agent that takes one item at a time."""
    return f"""
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {{name: {name}, namespace: demo}}
spec:
  replicas: 1
  work: {{slots: 1}}
  template:
    instruction: Summarise the document in three sentences.
    model: {{pool: {pool}}}
    limits: {{maxTokens: 50000, deadline: 5m}}{more}
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    """A machine on which a plane runs, with a pool that names no endpoint and its fleet."""
    with tempfile.TemporaryDirectory(prefix="agentctl-gateways-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            machine.ready(machine.up("--gateways", "--store", "memory"))
            machine.fleet()
            yield machine
        finally:
            machine.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not tmp_path: root's PostgreSQL runs as another user, and pytest shuts its folders to others.
    with tempfile.TemporaryDirectory(prefix="agentctl-gateways-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        machine = Machine(Path(folder))
        yield machine
        machine.close()


def endpoints(machine: Machine) -> dict[str, str]:
    """Where things are."""
    found: dict[str, str] = json.loads((machine.state / "endpoints.json").read_text())
    return found


def apply(machine: Machine, *things: str) -> None:
    """Declares them."""
    machine.done("apply", "-f", "-", stdin="---".join(things))


def calls(machine: Machine, pool: str, *more: str) -> list[dict[str, Any]]:
    """The records of a pool's calls, newest first."""
    found: list[dict[str, Any]] = machine.json("usage", "-n", NAMESPACE, "--pool", pool, "--calls", *more)[
        "calls"
    ]
    return found


def secrets(machine: Machine) -> list[str]:
    """The Secrets of the namespace, by name."""
    return [each["metadata"]["name"] for each in machine.json("get", "secrets", "-n", NAMESPACE)["items"]]


def administrator(machine: Machine, url: str) -> openai.OpenAI:
    """The stock client, with the local administrator's certificate."""
    tls = endpoints(machine)["tls_dir"]
    context = ssl.create_default_context(cafile=f"{tls}/ca.crt")
    context.load_cert_chain(f"{tls}/tls.crt", f"{tls}/tls.key")
    http = httpx2.Client(verify=context, trust_env=False)
    return openai.OpenAI(base_url=url, api_key="none", http_client=http, max_retries=0)


def test_what_a_fleet_asks_its_model_is_on_record_under_the_names_of_its_pods(shared: Machine) -> None:
    lines = "".join(f"Line {n}. It goes on.\n" for n in range(12))
    shared.done("work", "submit", QUEUE, "-", "--wait", stdin=lines)
    found = calls(shared, "stand-in", "--agent", "summarize")
    assert len(found) == 12
    for call in found:
        assert (call["status"], call["error"], call["model"]) == (200, "", MODEL)
        assert int(call["input_tokens"]) > 0
        assert int(call["output_tokens"]) > 0
        assert call["estimated"] is False
    callers = {Principal.parse(call["caller"]) for call in found}
    assert {caller.name for caller in callers} == {"summarize"}
    assert {caller.pod for caller in callers} <= shared.pods().keys()
    assert len(calls(shared, "stand-in", "--limit", "5")) == 5
    shown = shared.done("usage", "-n", NAMESPACE, "--calls", "--limit", "3").splitlines()
    assert shown[0].split()[:4] == ["STARTED", "POOL", "ENDPOINT", "MODEL"]
    assert len(shown) == 4


def test_a_spent_budget_holds_the_next_item_back_and_a_larger_one_lets_work_through(shared: Machine) -> None:
    apply(shared, ONE_CALL, fleet("thrifty", "small"))
    shared.done("wait", "fleet/thrifty", "-n", NAMESPACE)
    shared.done("work", "submit", "demo/thrifty", "-", "--wait", stdin=DOCUMENT)
    shared.done("work", "submit", "demo/thrifty", "-", stdin=DOCUMENT)
    waiting: list[dict[str, Any]] = []

    def has_waited() -> bool:
        waiting[:] = shared.json("work", "list", "demo/thrifty", "--state", "delayed")["items"]
        return bool(waiting)

    until(has_waited, "the second item does not wait")
    (failure,) = waiting[0]["failures"]
    assert "HTTP 429: the budget of pool small" in failure["error"]
    assert [(call["status"], call["error"]) for call in calls(shared, "small")] == [
        (429, "budget"),
        (200, ""),
    ]
    (budget,) = shared.json("usage", "-n", NAMESPACE, "--pool", "small")["budgets"]
    assert (budget["scope"], budget["limit"], budget["reserved"]) == ("SCOPE_POOL", "6000", "0")
    assert int(budget["used"]) == sum(
        int(call[part]) for call in calls(shared, "small") for part in ("input_tokens", "output_tokens")
    )
    assert "small  pool" in shared.done("usage", "-n", NAMESPACE)

    apply(shared, ONE_CALL.replace("6000", "60000"))
    shared.done("work", "submit", "demo/thrifty", "-", "--wait", stdin=DOCUMENT)
    (budget,) = shared.json("usage", "-n", NAMESPACE, "--pool", "small")["budgets"]
    assert budget["limit"] == "60000"


def test_the_stock_client_asks_with_the_administrators_certificate(shared: Machine) -> None:
    with administrator(shared, endpoints(shared)["model_gateway_url"]) as client:
        said = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Summarise: One thing is so. Another is not."}],
            extra_headers={"X-Agentctl-Pool": "demo/stand-in"},
        )
        assert said.choices[0].message.content
        with pytest.raises(openai.NotFoundError):
            client.models.list(extra_headers={"X-Agentctl-Pool": "demo/none"})
    assert Principal.parse(calls(shared, "stand-in", "--limit", "1")[0]["caller"]).name == (
        "agentctl-system.administrator"
    )


def test_who_shows_no_certificate_is_not_answered(shared: Machine) -> None:
    found = endpoints(shared)
    context = ssl.create_default_context(cafile=f"{found['tls_dir']}/ca.crt")
    with httpx2.Client(verify=context, trust_env=False) as http:
        assert http.get(f"{found['model_gateway_url']}/models").status_code == 401
        assert http.post(f"{found['mcp_gateway_url']}/mcp", json={}).status_code == 401


def test_the_key_is_the_gateways_and_no_agents(machine: Machine) -> None:
    said = machine.ready(
        machine.up("--gateways", "--store", "memory", OPENAI_API_KEY=KEY, PROVIDER_API_KEY=KEY)
    )
    url = next(line.split()[-1] for line in said.splitlines() if "no model, ready at" in line)
    apply(machine, NAMESPACED, WITH_A_KEY.replace("URL", url), fleet("keyless", "openai"))
    machine.done("wait", "fleet/keyless", "-n", NAMESPACE)
    machine.done("work", "submit", "demo/keyless", "-", "--wait", stdin="One. Two. Three.\n")
    assert [call["status"] for call in calls(machine, "openai")] == [200]

    agents = machine.agents()
    assert agents
    shapes = (KEY.encode(), b64encode(KEY.encode()))
    for pid in agents:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert not any(shape in environment for shape in shapes)
    files = [path for path in machine.state.rglob("*") if path.is_file()]
    holding = [path.name for path in files if any(shape in path.read_bytes() for shape in shapes)]
    assert all(name.startswith("objects.sqlite") for name in holding), holding
    assert secrets(machine) == ["openai"]

    machine.stopped(machine.planes[0])
    machine.ready(machine.up("--gateways", "--store", "memory"))
    assert secrets(machine) == []


async def test_tools_are_called_through_the_gateway_and_denied_ones_are_refused(shared: Machine) -> None:
    with scripted() as model, toolserver() as server:
        script = model.script(Use("count", {"text": "by an agent"}), Say("Counted."))
        apply(
            shared,
            f"""
apiVersion: agentctl.dev/v1alpha1
kind: MCPServerSet
metadata: {{name: tools, namespace: demo}}
spec:
  servers:
  - name: counter
    endpoint: {server.endpoint}
    tools: {{deny: [hang]}}
""",
            f"""
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {{name: script, namespace: demo}}
spec: {{endpoint: "{script.url}", models: [scripted]}}
""",
            fleet("handy", "script", "\n    mcpServers: [tools]"),
        )
        shared.done("wait", "fleet/handy", "-n", NAMESPACE)
        shared.done("work", "submit", "demo/handy", "-", "--wait", stdin="Count.\n")
        assert server.texts() == ["by an agent"]
        offered = {tool["function"]["name"].rpartition("_")[2] for tool in script.asked[0]["tools"]}
        assert "count" in offered
        assert "hang" not in offered

        found = endpoints(shared)
        chosen = (("x-agentctl-server-set", "demo/tools"),)
        async with dial(MCP_GATEWAY, found["mcpgateway"], Identity(Path(found["tls_dir"]))) as channel:
            stub = McpGatewayServiceStub(channel)
            listed = await stub.ListTools(mcp_pb.ListToolsRequest(), metadata=chosen)
            assert [(tool.server, tool.name) for tool in listed.tools] == [("counter", "count")]
            arguments = ParseDict({"text": "by hand"}, Struct())
            request = mcp_pb.CallToolRequest(server="counter", tool="count", arguments=arguments)
            said = await stub.CallTool(request, metadata=chosen)
            assert said.content[0]["text"] == "2"
            with pytest.raises(DeniedError, match="no tool of that name that this agent may use"):
                await stub.CallTool(
                    mcp_pb.CallToolRequest(server="counter", tool="hang"), metadata=chosen, timeout=10
                )
        assert server.texts() == ["by an agent", "by hand"]
        shared.done("delete", "fleet/handy", "-n", NAMESPACE)


@pytest.mark.postgres
def test_what_was_used_outlives_the_plane(machine: Machine) -> None:
    machine.ready(machine.up("--gateways", "-f", str(FLEET)))
    machine.done("wait", "fleet/summarize", "-n", NAMESPACE)
    machine.done("work", "submit", QUEUE, "-", "--wait", stdin="One. Two.\nThree. Four.\n")
    before = calls(machine, "stand-in")
    assert len(before) == 2
    assert machine.stopped(machine.planes[0])[0] == 0
    machine.ready(machine.up("--gateways"))
    assert calls(machine, "stand-in") == before
