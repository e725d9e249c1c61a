"""The stand-in's listener: TLS, resources, verbs, A2A, and the plain port beside it."""

from __future__ import annotations

import asyncio
import io
import json
import ssl

import aiohttp
import pytest

from libs.testing.agentd.metrics import Metrics

from .foreign import WAIT, Authority, calls, says
from .lab import Agent, Lab


async def test_without_a_certificate_by_our_authority_the_connection_is_dropped(lab: Lab) -> None:
    agent = await lab.idle()
    (lab.folder / "other").mkdir()
    stranger = lab.client(Authority(lab.folder / "other"))
    for client in (lab.client(name=None), stranger):
        with pytest.raises(aiohttp.ClientConnectionError):
            await agent.request("POST", client, data="{}")


async def test_the_listener_takes_one_request_a_connection_and_no_other_verbs_or_origins(lab: Lab) -> None:
    agent = await lab.idle()
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    answer = await agent.post(hello)
    assert answer.headers["Connection"] == "close"
    assert "Mcp-Session-Id" in answer.headers
    assert (await answer.json())["result"]["protocolVersion"] == "2025-06-18"
    assert (await agent.request("GET")).status == 405
    assert (await agent.post(hello, Origin="https://evil.example")).status == 403
    assert (await agent.post(hello, Origin="http://localhost:3000")).status == 200
    assert (await agent.request("POST", data=io.BytesIO(b"x" * (8 * 1024 * 1024 + 1)))).status == 413
    versions = (await agent.result("server/discover"))["supportedVersions"]
    assert versions == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


async def test_a_replaced_certificate_is_taken_up(lab: Lab) -> None:
    agent = await lab.idle()
    before = await _certificate(agent)
    renewed = lab.authority.leaf("server")
    assert renewed == lab.server
    async with asyncio.timeout(WAIT):
        now = before
        while now == before:
            await asyncio.sleep(0.05)
            now = await _certificate(agent)
    assert now == ssl.PEM_cert_to_DER_cert((renewed / "tls.crt").read_text())


async def _certificate(agent: Agent) -> bytes:
    host, _, port = (await agent.event("mcp.serving"))["addr"].rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=agent.client)
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return found


async def test_the_manifest_is_of_contract_1_0_and_says_that_it_is_a_stand_in(lab: Lab) -> None:
    agent = await lab.idle("--model", "m-1")
    manifest = await agent.resource("agent://capabilities")
    assert manifest["contract_version"] == "1.0"
    assert manifest["agent_version"] == "1.0.0-standin"
    assert manifest["mode"] == "reactive"
    assert manifest["intelligence"]["healthy"] == "unknown"
    assert len(manifest["limits"]) == 8
    surfaces = manifest["surfaces"]
    verbs = ["a2a.Drain", "a2a.LameDuck", "a2a.Pause", "a2a.Resume", "a2a.Cancel"]
    assert surfaces["operator_tools"] == verbs
    assert len(surfaces["a2a"]["methods"]) == 6
    assert surfaces["shard"] is None
    assert "claim" not in surfaces


async def test_the_models_are_asked_for_when_somebody_reads_of_them(lab: Lab) -> None:
    agent = await lab.idle()
    body = await agent.resource("agent://intelligence")
    assert (body["discovery"], body["models"]) == (True, ["m-1", "m-2"])
    assert [(one["active"], one["state"]) for one in body["endpoints"]] == [(True, "unknown")]


async def test_the_probe_tells_of_its_own_flags_only(lab: Lab) -> None:
    code, out = await (await lab.start("--capabilities")).exit()
    surfaces = json.loads(out)["surfaces"]
    assert (code, surfaces["management"], surfaces["a2a"], surfaces["metrics"]) == (0, False, False, False)


async def test_the_resources_have_the_fields_of_the_contract(lab: Lab) -> None:
    agent = await lab.idle()
    fields = {
        "agent://status": "run_id mode version pid uptime_ms inflight_spawns total_spawns",
        "agentd://inventory": "run_id mode draining paused ready totals nodes",
        "agent://capacity": "instance shard standby free_slots active_subagents max_total_subagents"
        " saturation intelligence",
        "agent://intelligence": "endpoints active all_down models discovery swap_policy",
        "agent://events": "events_schema oldest_seq newest_seq dropped events",
    }
    for uri, names in fields.items():
        assert list(await agent.resource(uri)) == names.split()
    assert await agent.code("resources/read", {"uri": "agent://metrics"}) == -32002
    events = await agent.resource("agent://events?after=1&event=proc.,mcp.")
    assert {event["event"].split(".")[0] for event in events["events"]} <= {"proc", "mcp"}
    assert all(event["seq"] > 1 for event in events["events"])


async def test_unknown_methods_and_tools(lab: Lab) -> None:
    agent = await lab.idle()
    for method in ("drain", "Drain", "message/send", "CreateTaskPushNotificationConfig", "nothing"):
        assert await agent.code(method) == -32601
    assert await agent.code("tools/call", {"name": "drain", "arguments": {}}) == -32602
    status = await agent.result("tools/call", {"name": "status"})
    assert status["structuredContent"]["mode"] == "reactive"


async def test_a_message_is_waited_for_by_default(lab: Lab) -> None:
    agent = await lab.idle()
    task = await agent.send("say\nsomething", wait=True)
    assert (task["id"], task["contextId"]) == ("served.1", "ctx-served.1")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"] == [{"artifactId": "served.1.distillate", "parts": [{"text": "done"}]}]
    assert lab.model.asked[0]["messages"][-1]["content"] == "say\nsomething"
    assert await agent.result("GetTask", {"id": "served.1"}) == task
    assert await agent.result("ListTasks") == {"tasks": [task]}
    assert await agent.code("CancelTask", {"id": "served.1"}) == -32004
    assert await agent.code("GetTask", {"id": "served.9"}) == -32001
    assert await agent.code("SendMessage", {"message": {"parts": [{"data": {}}]}}) == -32602


async def test_four_at_once_the_fifth_is_refused(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.idle()
    for _ in range(4):
        assert (await agent.send("x"))["status"]["state"] == "TASK_STATE_WORKING"
    message = {"message": {"parts": [{"text": "x"}]}}
    immediately = message | {"configuration": {"returnImmediately": True}}
    assert await agent.code("SendMessage", immediately) == -32603
    assert (await agent.send("x", wait=True))["status"]["state"] == "TASK_STATE_FAILED"
    assert (await agent.resource("agent://capacity"))["free_slots"] == 0


async def test_a_failed_run_is_a_failed_task_without_an_artifact(lab: Lab) -> None:
    lab.model.script = [500]
    agent = await lab.idle()
    task = await agent.send("x", wait=True)
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "artifacts" not in task


async def test_a_stream_tells_of_work_artifact_and_end(lab: Lab) -> None:
    agent = await lab.idle()
    async with agent.stream("SendStreamingMessage", {"message": {"parts": [{"text": "x"}]}}) as frame:
        work, artifact, end = await frame(), await frame(), await frame()
        assert await frame() is None
    assert work is not None
    assert artifact is not None
    assert end is not None
    assert {one["id"] for one in (work, artifact, end)} == {"s"}
    update = work["result"]["statusUpdate"]
    assert (update["taskId"], update["contextId"]) == ("served.1", "ctx-served.1")
    assert update["status"]["state"] == "TASK_STATE_WORKING"
    assert artifact["result"]["artifactUpdate"]["lastChunk"] is True
    assert artifact["result"]["artifactUpdate"]["artifact"]["parts"] == [{"text": "done"}]
    assert end["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "final" not in end["result"]["statusUpdate"]


async def test_a_subscriber_is_told_the_end_too(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.idle()
    task = await agent.send("x")
    async with agent.stream("a2a.SubscribeToTask", {"id": task["id"]}) as frame:
        assert await frame() is not None
        lab.model.going.set()
        artifact, end = await frame(), await frame()
    assert artifact is not None
    assert end is not None
    assert end["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert await agent.code("SubscribeToTask", {"id": "served.9"}) == -32001


async def test_a_stream_is_still_open_after_its_last_frame(lab: Lab) -> None:
    agent = await lab.idle("--standin-stream-close", "1h")
    async with agent.stream("SendStreamingMessage", {"message": {"parts": [{"text": "x"}]}}) as frame:
        for _ in range(3):
            assert await frame() is not None
        end = asyncio.create_task(frame())
        assert (await agent.plain("/readyz"))[0] == 200
        assert not end.done()
        await agent.result("a2a.Drain")
        assert await end is None
    assert (await agent.exit())[0] == 0


async def test_a_subscriber_of_resources_is_told_that_they_changed_and_not_how(lab: Lab) -> None:
    agent = await lab.idle()
    wanted = {"notifications": {"resourceSubscriptions": ["agent://inventory", "agent://metrics"]}}
    async with agent.stream("subscriptions/listen", wanted) as frame:
        hello = await frame()
        assert hello is not None
        assert hello["method"] == "notifications/subscriptions/acknowledged"
        assert hello["params"]["notifications"]["resourceSubscriptions"] == ["agent://inventory"]
        await agent.send("x")
        change = await frame()
        assert change is not None
        assert change["method"] == "notifications/resources/updated"
        assert change["params"]["uri"] == "agent://inventory"


async def test_pause_holds_a_run_at_its_next_turn_and_resume_lets_it_go(lab: Lab) -> None:
    lab.model.script = [calls("notes.add"), says("after")]
    lab.model.going.clear()
    agent = await lab.idle()
    task = await agent.send("x")
    await lab.model.is_asked()
    assert await agent.result("a2a.Pause") == {"paused": True, "affected": 1}
    inventory = await agent.resource("agent://inventory")
    assert (inventory["paused"], inventory["nodes"][0]["paused"]) == (True, True)
    lab.model.going.set()
    await agent.event("tool.result")
    assert (await agent.result("GetTask", {"id": task["id"]}))["status"]["state"] == "TASK_STATE_WORKING"
    assert len(lab.model.asked) == 1
    assert await agent.result("a2a.Resume") == {"paused": False, "affected": 1}
    await agent.task(task["id"], "TASK_STATE_COMPLETED")


async def test_a_run_of_one_turn_completes_though_paused_and_canceled(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.idle()
    task = await agent.send("x")
    await lab.model.is_asked()
    assert (await agent.result("a2a.Pause"))["affected"] == 1
    assert await agent.result("a2a.Cancel") == {"handle": "0", "cancelled": True, "subtree_size": 1}
    canceled = await agent.result("CancelTask", {"id": task["id"]})
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    lab.model.going.set()
    await agent.task(task["id"], "TASK_STATE_COMPLETED")


async def test_cancel_ends_a_run_between_turns(lab: Lab) -> None:
    lab.model.script = [calls("notes.add")]
    lab.model.going.clear()
    agent = await lab.idle()
    task = await agent.send("x")
    await lab.model.is_asked()
    assert await agent.code("a2a.Cancel", {"handle": "served.9"}) == -32602
    assert await agent.result("a2a.Cancel", {"handle": task["id"]}) == {
        "handle": task["id"],
        "cancelled": True,
    }
    lab.model.going.set()
    await agent.task(task["id"], "TASK_STATE_CANCELED")
    assert len(lab.model.asked) == 1


async def test_the_verbs_do_not_reach_a_message_that_is_waited_for(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.idle()
    waiting = asyncio.create_task(agent.send("x", wait=True))
    await lab.model.is_asked()
    assert (await agent.result("a2a.Pause"))["affected"] == 0
    assert (await agent.result("a2a.Cancel"))["subtree_size"] == 0
    lab.model.going.set()
    assert (await waiting)["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_lame_duck_is_readiness_only_and_is_reversible(lab: Lab) -> None:
    agent = await lab.idle()
    assert (await agent.plain("/readyz"))[0] == 200
    answer = await agent.result("a2a.LameDuck")
    assert (answer["ready"], answer["in_flight"]) == (False, 0)
    assert (await agent.plain("/readyz"))[0] == 503
    status, body = await agent.plain("/healthz")
    assert (status, body.startswith("ok tick_age_ms=")) == (200, True)
    assert (await agent.result("a2a.LameDuck", {"ready": True}))["ready"] is True
    assert (await agent.plain("/readyz"))[0] == 200


async def test_an_idle_agent_that_is_drained_exits_0(lab: Lab) -> None:
    agent = await lab.idle()
    answer = await agent.result("a2a.Drain", {"deadline_ms": 10**9})
    assert (answer["draining"], answer["in_flight"]) == (True, 0)
    assert answer["drain_timeout_ms"] == 25_000
    assert (await agent.exit())[0] == 0


async def test_a_drain_is_one_way_and_the_answer_in_progress_still_comes(lab: Lab) -> None:
    lab.model.going.clear()
    agent = await lab.idle()
    waiting = asyncio.create_task(agent.send("x", wait=True))
    await lab.model.is_asked()
    answer = await agent.result("a2a.Drain", {"deadline_ms": 10**9})
    assert (answer["in_flight"], answer["eta_ms"]) == (1, 25_000)
    assert "error" in await agent.call("a2a.LameDuck", {"ready": True})
    assert (await agent.plain("/readyz"))[0] == 503
    assert (await agent.plain("/healthz"))[0] == 503
    lab.model.going.set()
    assert (await waiting)["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await agent.exit())[0] == 0


async def test_tokens_and_runs_are_counted_and_the_model_s_calls_are_not(lab: Lab) -> None:
    agent = await lab.idle()
    for _ in range(3):
        await agent.send("x", wait=True)
    _, text = await agent.plain("/metrics")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples['agent_tokens_total{type="in"}'] == "270"
    assert samples['agent_tokens_total{type="out"}'] == "30"
    assert samples['agent_runs_total{status="completed"}'] == "3"
    assert samples["agent_intel_calls_total"] == samples["agent_loop_steps_total"] == "0"
    assert len({name.partition("{")[0] for name in samples}) == 41


def test_a_tool_server_that_failed_has_a_series_and_the_seventeenth_is_other() -> None:
    metrics = Metrics()
    assert "agent_mcp_connect_failures_total" not in metrics.render()
    for number in range(18):
        metrics.connect_failed(f"s{number}")
    assert 'agent_mcp_connect_failures_total{server="s15"} 1\n' in metrics.render()
    assert 'agent_mcp_connect_failures_total{server="other"} 2\n' in metrics.render()
