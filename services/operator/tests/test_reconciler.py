"""Objects become workloads, and stay what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    MCP_SERVER_SET,
    MODEL_POOL,
)
from libs.errors import InvalidError
from services.operator.settings import Settings

from .world import IMAGE, Counting, Refusing, World


async def test_an_agent_becomes_a_workload_that_is_recorded(home: World):
    async with home.operator():
        await home.apply(home.agent("watcher"))
        deployment = await home.there(DEPLOYMENT, "watcher")
        await home.accepted(AGENT, "watcher", status="True")
        agent = await home.get(AGENT, "watcher")
        recorded = agent["status"]["workloads"]
        assert recorded == [{"kind": "Deployment", "name": "watcher", "uid": deployment["metadata"]["uid"]}]
        assert deployment["metadata"]["ownerReferences"][0]["uid"] == agent["metadata"]["uid"]


async def test_a_change_costs_one_apply_and_one_status(home: World):
    counting = Counting(home.cluster)
    async with home.operator(counting) as operator:
        await home.apply(home.agent("cron", "schedule"))
        await home.there(CRON_JOB, "cron")
        await home.accepted(AGENT, "cron", status="True")
        await home.settle(operator, AGENT, ["cron"])
        counting.writes.clear()
        counting.reads.clear()
        await home.apply(home.agent("cron", "schedule", instruction="look twice"))
        await home.accepted(AGENT, "cron", status="True")
        await home.settle(operator, AGENT, ["cron"])
        assert counting.lasting == ["apply CronJob cron", "status Agent cron"]
        assert not counting.reads


async def test_what_is_unchanged_is_neither_written_nor_read(home: World):
    counting = Counting(home.cluster)
    names = [f"cron-{n}" for n in range(3)]
    async with home.operator(counting) as operator:
        for name in names:
            await home.apply(home.agent(name, "schedule"))
        for name in names:
            await home.accepted(AGENT, name, status="True")
        await home.settle(operator, AGENT, names)
        counting.writes.clear()
        counting.reads.clear()
        await home.settle(operator, AGENT, names)
        assert (counting.writes, counting.reads) == ([], [])
    async with home.operator(counting) as operator:  # nor by a new process, which knows nothing
        await home.settle(operator, AGENT, names)
        assert (counting.lasting, counting.reads) == ([], [])


async def test_a_change_by_hand_heals(home: World):
    async with home.operator():
        await home.apply(home.agent("watcher"))
        deployment = await home.there(DEPLOYMENT, "watcher")
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.test/evil:1"
        changed = await home.cluster.apply(_only(deployment, "registry.test/evil:1"), "somebody")
        assert changed["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.test/evil:1"

        async def healed() -> bool:
            there = await home.get(DEPLOYMENT, "watcher")
            return bool(there["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE)

        await home.until(healed)


def _only(deployment: dict[str, object], image: str) -> dict[str, object]:
    containers = [{"name": "agent", "image": image}]
    metadata = {name: deployment["metadata"][name] for name in ("name", "namespace")}  # type: ignore[index]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": {"spec": {"containers": containers}}},
    }


async def test_a_child_that_was_deleted_comes_back(home: World):
    async with home.operator():
        await home.apply(home.agent("flow", "workflow"))
        first = await home.there(CONFIG_MAP, "flow-workflow")
        await home.cluster.delete(CONFIG_MAP, home.namespace, "flow-workflow")

        async def again() -> bool:
            there = await home.find(CONFIG_MAP, "flow-workflow")
            return there is not None and there["metadata"]["uid"] != first["metadata"]["uid"]

        await home.until(again)


async def test_another_mode_prunes_what_the_old_one_needed(home: World):
    async with home.operator():
        await home.apply(home.agent("x", "schedule"))
        await home.there(CRON_JOB, "x")
        await home.apply(home.agent("x", "workflow"))
        await home.there(JOB, "x")
        assert await home.find(CRON_JOB, "x") is None
        await home.there(CONFIG_MAP, "x-workflow")
        await home.apply(home.agent("x", "schedule"))
        await home.there(CRON_JOB, "x")
        await home.gone(CONFIG_MAP, "x-workflow")
        assert await home.find(JOB, "x") is None


async def test_a_coordinator_goes_when_it_is_no_longer_declared(home: World):
    async with home.operator():
        await home.apply(home.fleet("f", coordinator={"template": {"image": IMAGE}, "replicas": 0}))
        await home.there(DEPLOYMENT, "f-coordinator")
        await home.apply(home.fleet("f"))
        await home.gone(DEPLOYMENT, "f-coordinator")
        assert await home.find(DEPLOYMENT, "f")


async def test_a_missing_pool_is_a_condition_until_it_is_there(home: World):
    async with home.operator():
        await home.apply(home.agent("x", "schedule", model={"pool": "late"}))
        said = await home.accepted(AGENT, "x", "UnknownModelPool")
        assert "late" in said["message"]
        assert await home.find(CRON_JOB, "x") is None
        await home.apply(
            home.thing(MODEL_POOL, "late", {"endpoint": "https://models.test/v1", "models": ["m"]})
        )
        await home.there(CRON_JOB, "x")
        await home.accepted(AGENT, "x", status="True")

        async def counted() -> bool:
            pool = await home.get(MODEL_POOL, "late")
            return bool(pool.get("status", {}).get("users") == 1)

        await home.until(counted)


async def test_a_pool_says_that_it_lacks_a_gateway_and_wakes_its_agents_when_it_needs_none(
    home: World,
):
    paid = {"models": ["m"], "endpoint": "https://models.test/v1", "budgets": [{"per": "pool", "tokens": 1}]}
    async with home.operator():
        await home.apply(home.thing(MODEL_POOL, "paid", paid))
        await home.apply(home.agent("x", "schedule", model={"pool": "paid"}))
        await home.accepted(AGENT, "x", "NoModelGateway")
        said = await home.accepted(MODEL_POOL, "paid", "NoModelGateway")
        assert "AGENTCTL_MODEL_GATEWAY_URL" in said["message"]
        del paid["budgets"]
        await home.apply(home.thing(MODEL_POOL, "paid", paid))
        await home.there(CRON_JOB, "x")
        await home.accepted(MODEL_POOL, "paid", status="True")


async def test_where_gateways_are_agents_are_told_to_show_their_certificate_there(home: World):
    home.gateways |= {"model_gateway_url": "https://models/v1", "mcp_gateway_url": "https://tools"}
    tools = {"servers": [{"name": "web", "endpoint": "https://web.test/mcp", "tools": {"deny": ["x"]}}]}
    async with home.operator():
        await home.apply(home.thing(MODEL_POOL, "main", {"endpoint": "https://models.test", "models": ["m"]}))
        await home.apply(home.thing(MCP_SERVER_SET, "tools", tools))
        await home.apply(home.agent("watcher", model={"pool": "main"}, mcpServers=["tools"]))
        deployment = await home.there(DEPLOYMENT, "watcher")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert (told["OPENAI_BASE_URL"], told["AGENT_MODEL_IDENTITY"]) == ("https://models/v1", "true")
        assert json.loads(told["AGENT_MCP_SERVERS"]) == [
            {"name": "web", "endpoint": "https://tools/servers/web/mcp", "tags": [], "identity": True}
        ]


def test_an_agent_shows_its_certificate_over_tls_only(tmp_path: Path):
    with pytest.raises(ValueError, match="AGENTCTL_MCP_GATEWAY_URL must be an https URL"):
        Settings(tls_dir=tmp_path, mcp_gateway_url="http://tools")


async def test_of_an_agent_and_a_fleet_of_one_name_the_elder_has_it(home: World):
    async with home.operator():
        await home.apply(home.fleet("twin"))
        await home.accepted(AGENT_FLEET, "twin", status="True")
        await home.until(_older_than_a_second(home))
        await home.apply(home.agent("twin", "schedule"))
        await home.accepted(AGENT, "twin", "NameConflict")
        await home.cluster.delete(AGENT_FLEET, home.namespace, "twin")
        await home.there(CRON_JOB, "twin")
        await home.accepted(AGENT, "twin", status="True")


def _older_than_a_second(home: World):
    async def look() -> bool:
        from datetime import UTC, datetime

        fleet = await home.get(AGENT_FLEET, "twin")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return bool(fleet["metadata"]["creationTimestamp"] < now)

    return look


async def test_nothing_is_taken_from_somebody_else(home: World):
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mine", "namespace": home.namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "mine"}},
            "template": {
                "metadata": {"labels": {"app": "mine"}},
                "spec": {"containers": [{"name": "c", "image": "registry.test/mine"}]},
            },
        },
    }
    made = await home.apply(foreign)
    async with home.operator():
        await home.apply(home.agent("mine"))
        said = await home.accepted(AGENT, "mine", "NameConflict")
        assert "Deployment mine" in said["message"]
        there = await home.get(DEPLOYMENT, "mine")
        assert there["metadata"]["uid"] == made["metadata"]["uid"]
        assert there["spec"] == made["spec"]
        assert "ownerReferences" not in there["metadata"]


async def test_what_the_api_server_refuses_is_a_condition_and_no_loop(home: World):
    refusing = Refusing(home.cluster, "bad", InvalidError("spec.template: no pod can be like that"))
    async with home.operator(refusing) as operator:
        await home.apply(home.agent("bad"))
        await home.apply(home.agent("good", "schedule"))
        await home.there(CRON_JOB, "good")
        said = await home.accepted(AGENT, "bad", "Refused", "False")
        assert "no pod can be like that" in said["message"]
        assert not operator.controller.failing
        await home.until(lambda: not operator.controller.depths())
        assert refusing.writes.count("apply Deployment bad") == 1


async def test_a_poisoned_object_stops_no_other(home: World, caplog: pytest.LogCaptureFixture):
    refusing = Refusing(home.cluster, "poison", KeyError("a bug"))
    async with home.operator(refusing) as operator:
        await home.apply(home.agent("poison"))
        await home.until(lambda: operator.controller.failing)
        for n in range(8):  # more than there are workers
            await home.apply(home.agent(f"cron-{n}", "schedule"))
        for n in range(8):
            await home.accepted(AGENT, f"cron-{n}", status="True")
        assert list(operator.controller.failing.values()) == ["KeyError: 'a bug'"]
        assert [record.exc_info for record in caplog.records if "a bug in its pass" in record.message]


async def test_each_change_is_one_event(home: World):
    async with home.operator() as operator:
        await home.apply(home.agent("cron", "schedule"))
        await home.accepted(AGENT, "cron", status="True")

        async def noted() -> bool:
            return len(await home.events()) >= 2

        await home.until(noted)
        for _ in range(3):
            await home.settle(operator, AGENT, ["cron"])
        await home.apply(home.agent("cron", "schedule", instruction="look twice"))

        async def updated() -> bool:
            return any(each["reason"] == "Updated" for each in await home.events())

        await home.until(updated)
        reasons = [each["reason"] for each in await home.events()]
        assert len(reasons) == len(set(reasons)), reasons
        assert reasons.count("Created") == 1
