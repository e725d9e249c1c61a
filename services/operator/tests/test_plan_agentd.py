"""A pod of an agent that speaks agentd-1: who in it has what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cluster.local.runner.environment import expanded
from services.operator.plan import desired
from services.operator.plan.environment import literal
from services.operator.plan.template import CONTAINER

from .manifests import SETTINGS, agent, context, fleet, plan_of, pod_of, pool, servers, workload_of

PART: dict[str, Any] = {
    "image": "example.com/agentd:1.4.0",
    "contract": "agentd-1",
    "instruction": "Work.",
    "model": {"pool": "models"},
}
MODES: dict[str, dict[str, Any]] = {
    "once": {},
    "schedule": {"schedule": {"cron": "@daily"}},
    "workflow": {"workflow": {"inline": "steps: []"}},
    "loop": {"loop": {"interval": "5m"}},
    "reactive": {"subscribe": ["file:///in"]},
}
THEIRS = {
    "spec": {
        "volumes": [{"name": "mine", "emptyDir": {}}],
        "containers": [
            {
                "name": "agent",
                "args": ["--last"],
                "env": [{"name": "LANG", "value": "de"}, {"name": "AGENT_MODEL", "value": "other"}],
                "envFrom": [{"configMapRef": {"name": "more"}}],
                "volumeMounts": [{"name": "mine", "mountPath": "/mine"}],
            }
        ],
    }
}


def pods() -> dict[str, Any]:
    """The pod template of each mode, and of a fleet's worker."""
    others = [pool(), servers("web", "search")]
    more: dict[str, Any] = {"mcpServers": ["web"], "podTemplate": THEIRS}
    made = {mode: agent(mode=mode, **PART, **block, **more) for mode, block in MODES.items()}
    made["worker"] = fleet(template=PART | more)
    return {name: pod_of(workload_of(plan_of(each, *others)))["spec"] for name, each in made.items()}


def env_of(container: Any) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def flags(container: Any, name: str) -> list[str]:
    return [value for flag, value in pairwise(container["args"]) if flag == name]


@pytest.mark.parametrize("name", [*MODES, "worker"])
def test_the_agent_has_no_credential_and_the_bridge_has_nothing_of_the_people(name):
    spec = pods()[name]
    (theirs,), (bridge,) = spec["containers"], spec["initContainers"]
    workflow = {"/run/agentctl/workflow": True} if name == "workflow" else {}
    assert {each["mountPath"]: bool(each.get("readOnly")) for each in theirs["volumeMounts"]} == {
        "/run/agentctl/bridge": True, **workflow, "/tmp": False, "/mine": False,
    }  # fmt: skip
    assert not {"agentctl-token", "agentctl-trust", "agentctl-tls"} & {
        each["name"] for each in theirs["volumeMounts"]
    }
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe"} & theirs.keys()
    assert not {key for key in env_of(theirs) if key.startswith(("AGENTCTL_", "OPENAI_"))}
    shared = {each["name"] for each in theirs["volumeMounts"]} & {
        each["name"] for each in bridge["volumeMounts"]
    }
    assert shared == {"agentctl-bridge"} | ({"agentctl-workflow"} if workflow else set())
    assert "LANG" not in env_of(bridge)
    assert not {"envFrom", "args"} & bridge.keys()


@pytest.mark.parametrize("name", [*MODES, "worker"])
def test_the_bridge_stands_for_the_agent(name):
    (bridge,) = pods()[name]["initContainers"]
    assert (bridge["name"], bridge["command"], bridge["restartPolicy"]) == (
        "bridge", ["agentctl-bridge"], "Always",
    )  # fmt: skip
    assert bridge["image"] == SETTINGS.agent_image
    assert {each["name"]: each["containerPort"] for each in bridge["ports"]} == {
        "metrics": 9090, "grpc": 7414,
    }  # fmt: skip
    # the agent is begun when the first is answered, and makes the second
    assert bridge["startupProbe"]["httpGet"]["path"] == "/livez"
    assert bridge["readinessProbe"]["httpGet"]["path"] == "/readyz"
    env = env_of(bridge)
    assert {"AGENTCTL_TOKEN_FILE", "OPENAI_BASE_URL", "AGENT_MCP_SERVERS"} <= env.keys()
    assert ("AGENT_QUEUE" in env) == (name == "worker")


@pytest.mark.parametrize("name", [*MODES, "worker"])
def test_the_agent_is_told_in_its_own_words(name):
    (theirs,) = pods()[name]["containers"]
    env = env_of(theirs)
    assert env["AGENT_INTELLIGENCE"] == env["INTELLIGENCE"] == "http://127.0.0.1:7431/v1/chat/completions"
    assert (env["AGENT_MODEL"], env["LANG"], env["AGENT_METRICS_ADDR"]) == ("small", "de", "127.0.0.1:9091")
    assert flags(theirs, "--mode") == [{"schedule": "once", "worker": "reactive"}.get(name, name)]
    assert flags(theirs, "--mcp") == ["search=http://127.0.0.1:7431/mcp/search"]
    assert flags(theirs, "--mcp-tags") == []  # it knows no tag `read`
    assert flags(theirs, "--serve-mcp") == ["https://127.0.0.1:8443"]
    assert flags(theirs, "--interval") == (["300s"] if name == "loop" else [])
    subscribed = {"reactive": ["file:///in"], "worker": ["queue://team-a/f"]}
    assert flags(theirs, "--subscribe") == subscribed.get(name, [])
    assert theirs["args"][-1] == "--last"


@pytest.mark.parametrize("name", ["once", "schedule", "workflow"])
def test_a_run_of_the_agent_has_the_id_that_the_bridge_knows_it_by(name):
    spec = pods()[name]
    ids = [env_of(spec[kind][0])["AGENT_RUN_ID"] for kind in ("containers", "initContainers")]
    assert ids[0] == ids[1]
    assert "controller-uid" in ids[0]["fieldRef"]["fieldPath"]


def test_how_a_run_ended_is_said_by_the_agents_container_and_not_by_the_bridge():
    job = plan_of(agent(**PART), pool()).objects[0]["spec"]
    rules = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert {rule["containerName"] for rule in rules} == {job["template"]["spec"]["containers"][0]["name"]}
    assert {rule["containerName"] for rule in rules} == {CONTAINER}


def test_where_pods_share_one_loopback_each_has_its_own_address():
    settings = replace(SETTINGS, loopback="$(AGENT_HOST)")
    what = agent(**PART, mcpServers=["web"])
    plan = desired(what, replace(context([pool(), servers("web", "search")]), settings=settings))
    (theirs,) = pod_of(plan.objects[0])["spec"]["containers"]
    at = {"AGENT_HOST": "127.64.0.9"}
    assert "127.0.0.1" not in str(theirs)
    assert [expanded(word, at) for word in flags(theirs, "--serve-mcp")] == ["https://127.64.0.9:8443"]
    assert expanded(env_of(theirs)["INTELLIGENCE"], at).startswith("http://127.64.0.9:7431/")
    assert [each["name"] for each in theirs["env"]].index("AGENT_HOST") == 0  # only what is before is known


@given(st.text(st.sampled_from("$()AGENT_HOS x")))
def test_what_people_write_reaches_the_agent_as_it_is(text):
    assert expanded(literal(text), {"AGENT_HOST": "expanded", "A": "expanded"}) == text


def test_an_instruction_names_no_variable():
    said = "It costs $5 or $$5, see $(AGENT_HOST)."
    plans = plan_of(agent(instruction=said)), plan_of(agent(**PART | {"instruction": said}), pool())
    ours, theirs = (pod_of(plan.objects[0])["spec"]["containers"][0] for plan in plans)
    told = [env_of(ours)["AGENT_INSTRUCTION"], *flags(theirs, "--instruction")]
    assert [expanded(each, {"AGENT_HOST": "expanded"}) for each in told] == [said, said]
