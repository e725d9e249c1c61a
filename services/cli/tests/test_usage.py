"""`agentctl usage` against a ModelGatewayService: what is asked, and what is printed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb
from agentctl.modelgateway.v1 import modelgateway_service_pb2_grpc as pb_grpc
from libs.mesh import MODEL_GATEWAY
from libs.rpc.server import serving
from libs.state import write_json
from libs.testing.ca import authority, identity

from ..__main__ import app


class Gateway:
    """Has one budget, and as many calls as are asked for."""

    def __init__(self) -> None:
        self.asked: list[pb.ListCallsRequest] = []

    async def Infer(self, request: object, context: object) -> None:
        raise NotImplementedError

    InferStream = Infer

    async def GetUsage(self, request: pb.GetUsageRequest, context: object) -> pb.GetUsageResponse:
        budget = pb.Budget(pool=request.pool or "p", scope=pb.SCOPE_FLEET, name="f", limit=9, used=7)
        budget.window.FromSeconds(3600)
        return pb.GetUsageResponse(budgets=[budget])

    async def ListCalls(self, request: pb.ListCallsRequest, context: object) -> pb.ListCallsResponse:
        self.asked.append(request)
        call = pb.CallRecord(pool="p", endpoint="e", model="m", input_tokens=3, output_tokens=4, status=200)
        call.estimated = True
        call.duration.FromMilliseconds(1500)
        return pb.ListCallsResponse(calls=[call] * request.page_size, next_page_token="more")


class World:
    """A state folder of a plane that seems to run, with this gateway."""

    def __init__(self, state: Path, tls_dir: Path) -> None:
        self.gateway = Gateway()
        self.state = state
        self._environment = {"AGENTCTL_TLS_DIR": str(tls_dir), "AGENTCTL_STATE_DIR": str(state)}

    async def __call__(self, *arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["usage", *arguments], env=self._environment)


@pytest.fixture
async def agentctl(tmp_path: Path):
    """Runs the command as an administrator."""
    world = World(tmp_path, identity(authority(), tmp_path, "/user/ann").folder)
    servicer: Any = world.gateway
    async with serving(
        MODEL_GATEWAY,
        identity(authority(), tmp_path, "/cp/modelgateway"),
        lambda server: pb_grpc.add_ModelGatewayServiceServicer_to_server(servicer, server),
    ) as up:
        write_json(world.state / "endpoints.json", {"modelgateway": up.address})
        yield world


async def test_budgets_are_shown_as_a_table_and_as_json(agentctl):
    shown = (await agentctl("-n", "demo")).stdout.splitlines()
    assert shown[0].split() == ["POOL", "PER", "NAME", "WINDOW", "USED", "RESERVED", "LIMIT", "RESETS", "AT"]
    assert shown[1].split() == ["p", "fleet", "f", "1h", "7", "0", "9", "-"]
    (budget,) = json.loads((await agentctl("--pool", "other", "-o", "json")).stdout)["budgets"]
    assert (budget["pool"], budget["used"], budget["window"]) == ("other", "7", "3600s")


async def test_calls_are_read_in_pages_up_to_the_limit(agentctl):
    shown = (await agentctl("-n", "demo", "--calls", "--agent", "f", "--limit", "2")).stdout.splitlines()
    assert shown[1].split() == ["1970-01-01T00:00:00Z", "p", "e", "m", "~3", "~4", "1.50s", "200", "-"]
    assert len(shown) == 3
    assert (
        len(json.loads((await agentctl("--calls", "--limit", "1500", "-o", "json")).stdout)["calls"]) == 1500
    )
    sizes = [(each.namespace, each.agent, each.page_size, each.page_token) for each in agentctl.gateway.asked]
    assert sizes == [("demo", "f", 2, ""), ("default", "", 1000, ""), ("default", "", 500, "more")]


async def test_what_cannot_be_is_told_in_a_line(agentctl):
    wrong = await agentctl("--agent", "f")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "error: --agent goes with --calls: budgets of all are shown\n",
    )
    write_json(agentctl.state / "endpoints.json", {"coordination": "127.0.0.1:1"})
    old = await agentctl()
    assert (old.exit_code, "no model gateway runs here" in old.stderr) == (5, True)
    (agentctl.state / "endpoints.json").unlink()
    assert (await agentctl()).exit_code == 5
