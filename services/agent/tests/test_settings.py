"""What the environment may say in each mode, and how the agent puts it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from libs.contract.environment import ENVIRONMENT
from libs.settings import SettingsError, describe, load
from services.agent.inputs import read
from services.agent.manifest import manifest_of
from services.agent.settings import MODES, Settings
from services.agent.tools.tool import Server

BARE = {"AGENTCTL_TLS_DIR": "/tls"}
ASKING = BARE | {
    "AGENT_MODEL": "m",
    "AGENT_INSTRUCTION": "Summarize.",
    "OPENAI_BASE_URL": "http://127.0.0.1:7480/v1",
    "OPENAI_API_KEY": "key",
}
SERVERS = json.dumps([{"name": "docs", "endpoint": "https://docs.example/mcp", "tags": ["sensitive"]}])
GOOD = {
    "claim": ASKING | {"AGENT_QUEUE": "default/docs"},
    "once": ASKING | {"AGENT_MODE": "once"},
    "loop": ASKING | {"AGENT_MODE": "loop", "AGENT_LOOP_INTERVAL": "5m"},
    "reactive": ASKING
    | {"AGENT_MODE": "reactive", "AGENT_SUBSCRIBE": '["file:///a"]', "AGENT_MCP_SERVERS": SERVERS},
    "workflow": BARE | {"AGENT_MODE": "workflow", "AGENT_WORKFLOW_FILE": "/w.yaml"},
}
SHARD = {"AGENT_SHARD_INDEX": "1", "AGENT_SHARD_COUNT": "3", "AGENT_SHARD_EPOCH": "7"}


def settings(mode: str, **change: str) -> Settings:
    return load(Settings, "AGENT_", GOOD[mode] | change)


@pytest.mark.parametrize("mode", GOOD)
def test_a_good_environment(mode):
    assert settings(mode).when == mode
    assert settings(mode, AGENT_MODE=mode).when == mode


def test_it_reads_what_the_contract_says_and_nothing_else():
    described = describe(Settings, "AGENT_").splitlines()
    assert {line.split()[0] for line in described if not line.startswith(" ")} == ENVIRONMENT.keys()


def test_what_goes_with_some_modes_only_is_what_the_contract_says():
    for name, modes in MODES.items():
        variable = ENVIRONMENT[f"AGENT_{name.upper()}"]
        assert set(variable.modes) == set(modes), variable.name


def test_values_are_read():
    it = settings("claim", AGENT_LEASE="1m", AGENT_DEADLINE="2h", AGENT_MAX_TOKENS="7")
    assert it.lease == timedelta(minutes=1)
    assert it.prompt() == "Summarize."
    assert it.key() == "key"
    assert "key" not in repr(it).replace("api_key", "")
    assert (it.bounds.deadline, it.bounds.max_tokens, it.bounds.max_steps) == (timedelta(hours=2), 7, 50)
    assert settings("reactive").uris == ("file:///a",)
    assert settings("reactive").servers == (Server("docs", "https://docs.example/mcp", ("sensitive",)),)


def test_who_is_shown_our_certificate_is_told():
    assert not settings("claim").model_identity
    servers = [
        {"name": "docs", "endpoint": "https://docs.example/mcp", "identity": True},
        {"name": "others", "endpoint": "https://docs.example/mcp", "identity": False},
    ]
    it = settings(
        "claim",
        OPENAI_BASE_URL="https://models.example/v1",
        AGENT_MODEL_IDENTITY="true",
        AGENT_MCP_SERVERS=json.dumps(servers),
    )
    assert it.model_identity
    assert [each.is_shown_ours for each in it.servers] == [True, False]


def test_a_shard_is_all_of_three_or_nothing():
    assert settings("claim").shard is None
    assert settings("claim", **SHARD).shard == (1, 3, 7)


def test_a_queue_retries_and_so_does_nobody_else():
    assert settings("claim").bounds.tries == 1
    assert settings("once").bounds.tries == 3


@pytest.mark.parametrize(
    ("mode", "change", "named"),
    [
        ("claim", {"AGENT_QUEUE": "docs"}, "AGENT_QUEUE"),
        ("claim", {"AGENT_QUEUE": "de fault/docs"}, "AGENT_QUEUE"),
        ("claim", {"AGENT_QUEUE": ""}, "AGENT_QUEUE: set it, or AGENT_MODE"),
        ("claim", {"AGENT_MODEL": ""}, "AGENT_MODEL"),
        ("claim", {"AGENT_INSTRUCTION": ""}, "AGENT_INSTRUCTION"),
        ("claim", {"AGENT_INSTRUCTION_FILE": "/x"}, "AGENT_INSTRUCTION_FILE"),
        ("claim", {"OPENAI_API_KEY_FILE": "/x"}, "OPENAI_API_KEY_FILE"),
        ("claim", {"OPENAI_BASE_URL": "http://models.example/v1"}, "OPENAI_BASE_URL"),
        ("claim", {"OPENAI_BASE_URL": "http://127.0.0.1.example/v1"}, "OPENAI_BASE_URL"),
        ("claim", {"OPENAI_BASE_URL": "ftp://127.0.0.1"}, "OPENAI_BASE_URL"),
        ("claim", {"OPENAI_BASE_URL": ""}, "OPENAI_BASE_URL"),
        ("claim", {"AGENT_INSTRUCTION": "caf\udce9"}, "AGENT_INSTRUCTION"),
        (
            "claim",
            {"AGENT_MODEL_IDENTITY": "true"},
            "AGENT_MODEL_IDENTITY: 'http://127.0.0.1:7480/v1' is not",
        ),
        (
            "claim",
            {"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "http://localhost/mcp", "identity": true}]'},
            r"AGENT_MCP_SERVERS\[0\].identity: goes with https",
        ),
        (
            "claim",
            {"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "https://a.example/mcp", "identity": "yes"}]'},
            r"AGENT_MCP_SERVERS\[0\].identity: is not true or false",
        ),
        ("claim", {"AGENT_SLOTS": "0"}, "AGENT_SLOTS"),
        ("claim", {"AGENT_SLOTS": "many"}, "AGENT_SLOTS"),
        ("claim", {"AGENT_LEASE": "1ms"}, "AGENT_LEASE"),
        ("claim", {"AGENT_LEESE": "1m"}, "AGENT_LEASE"),
        (
            "claim",
            {"AGENT_SHARD_INDEX": "0", "AGENT_SHARD_EPOCH": "1"},
            "AGENT_SHARD_COUNT: missing; set all three AGENT_SHARD_ or none",
        ),
        (
            "claim",
            SHARD | {"AGENT_SHARD_INDEX": "3"},
            "AGENT_SHARD_INDEX: 3 is not 0 to AGENT_SHARD_COUNT - 1",
        ),
        ("claim", SHARD | {"AGENT_SHARD_INDEX": "-1"}, "AGENT_SHARD_INDEX: -1 is not 0 to"),
        ("claim", SHARD | {"AGENT_SHARD_COUNT": "1025"}, "AGENT_SHARD_COUNT: 1025 is not 1 to 1024"),
        ("claim", SHARD | {"AGENT_SHARD_EPOCH": "0"}, "AGENT_SHARD_EPOCH: 0 is not 1"),
        ("claim", SHARD | {"AGENT_SHARD_INDEX": "a"}, "AGENT_SHARD_INDEX: 'a' is not a whole number"),
        ("once", SHARD, "AGENT_SHARD_INDEX: goes with mode claim, not once"),
        ("claim", {"AGENT_MAX_STEPS": "0"}, "AGENT_MAX_STEPS"),
        ("claim", {"AGENT_PORT": "70000"}, "AGENT_PORT"),
        ("claim", {"AGENT_PORT": "9090"}, "AGENT_METRICS_PORT: is that of AGENT_PORT"),
        ("claim", {"AGENT_HOST": "300.1.1.1"}, "AGENT_HOST: '300.1.1.1' is no IP address"),
        ("claim", {"AGENTCTL_COORDINATION_ADDRESS": "localhost"}, "AGENTCTL_COORDINATION_ADDRESS"),
        ("once", {"AGENT_MODE": "coordinator"}, "AGENT_MODE"),
        ("once", {"AGENT_MODE": "schedule"}, "is not one of once, loop, reactive, workflow, claim, or empty"),
        ("once", {"AGENT_QUEUE": "default/docs"}, "AGENT_QUEUE: goes with mode claim, not once"),
        ("once", {"AGENT_LEASE": "1m"}, "AGENT_LEASE: goes with mode claim"),
        ("once", {"AGENT_RUN_ID": "a/b"}, "AGENT_RUN_ID"),
        ("once", {"AGENT_LOOP_INTERVAL": "1m"}, "AGENT_LOOP_INTERVAL: goes with mode loop, not once"),
        ("loop", {"AGENT_LOOP_INTERVAL": ""}, "AGENT_LOOP_INTERVAL: is needed in mode loop"),
        ("loop", {"AGENT_REPORT_FILE": "/r"}, "AGENT_REPORT_FILE: goes with mode once or workflow, not loop"),
        ("reactive", {"AGENT_SUBSCRIBE": ""}, "AGENT_SUBSCRIBE: is needed"),
        ("reactive", {"AGENT_SUBSCRIBE": "file:///a"}, "AGENT_SUBSCRIBE: is not JSON"),
        ("reactive", {"AGENT_SUBSCRIBE": "[]"}, "AGENT_SUBSCRIBE: is no JSON list"),
        ("reactive", {"AGENT_SUBSCRIBE": '["a"]'}, r"AGENT_SUBSCRIBE\[0\]: is no URI"),
        ("reactive", {"AGENT_SUBSCRIBE": '["a:b", "a:b"]'}, "AGENT_SUBSCRIBE: a URI is there twice"),
        ("reactive", {"AGENT_MCP_SERVERS": ""}, "AGENT_MCP_SERVERS: is needed"),
        ("reactive", {"AGENT_MCP_SERVERS": "{}"}, "AGENT_MCP_SERVERS: is no JSON list"),
        (
            "reactive",
            {"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "http://tools.example"}]'},
            r"AGENT_MCP_SERVERS\[0\].endpoint",
        ),
        (
            "reactive",
            {"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "https://a", "url": ""}]'},
            r"AGENT_MCP_SERVERS\[0\].url: is not known",
        ),
        ("reactive", {"AGENT_STATE_DIR": "/s"}, "AGENT_STATE_DIR: goes with mode workflow"),
        ("workflow", {"AGENT_WORKFLOW_FILE": ""}, "AGENT_WORKFLOW_FILE: is needed in mode workflow"),
        ("workflow", {"AGENT_MODEL": "m"}, "OPENAI_BASE_URL"),
        ("workflow", {"OPENAI_BASE_URL": "https://a/v1"}, "AGENT_MODEL"),
    ],
)
def test_a_bad_environment_is_refused_by_name(mode, change, named):
    with pytest.raises(SettingsError, match=named):
        settings(mode, **change)


def test_all_problems_are_named_at_once():
    with pytest.raises(SettingsError) as refused:
        settings("once", AGENT_QUEUE="a/b", AGENT_SLOTS="0", AGENT_MCP_SERVERS="x", AGENT_MODEL="")
    named = {line.partition(":")[0] for line in str(refused.value).splitlines()}
    assert named == {"AGENT_QUEUE", "AGENT_SLOTS", "AGENT_MCP_SERVERS", "AGENT_MODEL"}


@pytest.mark.parametrize("url", ["https://api.example/v1", "http://[::1]:1/v1", "http://localhost:1/v1"])
def test_a_safe_endpoint(url):
    assert settings("claim", OPENAI_BASE_URL=url).base_url == url


def test_files_are_read_when_asked_for(tmp_path):
    instruction, key = tmp_path / "instruction.txt", tmp_path / "key"
    it = settings(
        "claim",
        AGENT_INSTRUCTION="",
        AGENT_INSTRUCTION_FILE=str(instruction),
        OPENAI_API_KEY="",
        OPENAI_API_KEY_FILE=str(key),
    )
    with pytest.raises(ValueError, match="AGENT_INSTRUCTION_FILE"):
        it.prompt()
    instruction.write_text(" \n")
    with pytest.raises(ValueError, match="AGENT_INSTRUCTION_FILE"):
        it.prompt()
    instruction.write_text("Summarize.")
    assert it.prompt() == "Summarize."
    key.write_text("first\n")
    assert it.key() == "first"
    key.write_text("second\n")
    assert it.key() == "second"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "AGENT_WORKFLOW_FILE: "),
        ("steps: []", r"AGENT_WORKFLOW_FILE: .*\$\.steps"),
        ("steps: [{name: a, instruction: x}]", "AGENT_MODEL: is empty"),
        ("steps: [{name: a, tool: wiki.read}]", "AGENT_MCP_SERVERS: has no wiki"),
    ],
)
def test_a_workflow_that_cannot_be_done_is_refused_before_it_begins(tmp_path, document, words):
    file = tmp_path / "w.yaml"
    if document:
        file.write_text(document)
    with pytest.raises(ValueError, match=words):
        read(settings("workflow", AGENT_WORKFLOW_FILE=str(file), AGENT_MCP_SERVERS=SERVERS))


def test_a_state_folder_has_to_be_there(tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text("steps: [{name: a, tool: docs.read}]")
    change = {"AGENT_WORKFLOW_FILE": str(file), "AGENT_MCP_SERVERS": SERVERS}
    assert read(settings("workflow", **change, AGENT_STATE_DIR=str(tmp_path))).kept is not None
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(ValueError, match="AGENT_STATE_DIR"):
        read(settings("workflow", **change, AGENT_STATE_DIR=str(tmp_path / "missing")))


def test_a_workflow_of_tools_needs_no_model(tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text("steps: [{name: a, tool: docs.read}]")
    it = settings("workflow", AGENT_WORKFLOW_FILE=str(file), AGENT_MCP_SERVERS=SERVERS, AGENT_RUN_ID="r")
    inputs = read(it)
    assert inputs.plan is not None
    assert (inputs.run_id, inputs.instruction, inputs.kept) == ("r", "", None)
    assert not manifest_of(it, None).surfaces.messages


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::1"])
def test_where_one_can_listen(host):
    free = {"AGENT_PORT": "0", "AGENT_METRICS_PORT": "0"}
    assert settings("once", AGENT_HOST=host, **free).host == host


@pytest.mark.parametrize("name", ["OPENAI_API_KEY_FILE", "AGENT_MODEL_CA_FILE"])
def test_a_file_that_cannot_be_read_is_refused_before_anything_begins(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name}: .*missing"):
        read(settings("once", **{"OPENAI_API_KEY": "", name: str(tmp_path / "missing")}))


def test_a_run_without_an_id_gets_a_new_one():
    assert read(settings("once")).run_id != read(settings("once")).run_id
