"""What the bridge takes from what an agent is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.settings import SettingsError, load
from services.bridge.settings import Settings, Upstream


def read(**environ):
    return load(Settings, "BRIDGE_", {"AGENTCTL_TLS_DIR": "/run/tls", **environ})


def test_what_an_agent_is_told_is_enough():
    servers = json.dumps([{"name": "search", "endpoint": "https://tools.example/mcp", "tags": ["egress"]}])
    settings = read(AGENT_QUEUE="demo/w", AGENT_SLOTS="9", AGENT_MCP_SERVERS=servers, AGENT_LATER="x")
    assert settings.claimed_queue == "demo/w"
    assert settings.taken_slots == 4
    assert settings.endpoints == {"search": Upstream("https://tools.example/mcp")}
    assert not settings.model_identity
    assert settings.private == Path("/run/tls/loopback")


def test_who_is_shown_our_certificate_is_told():
    servers = json.dumps([{"name": "search", "endpoint": "https://tools.example/mcp", "identity": True}])
    settings = read(
        AGENT_MCP_SERVERS=servers, OPENAI_BASE_URL="https://models.example/v1", AGENT_MODEL_IDENTITY="true"
    )
    assert settings.endpoints == {"search": Upstream("https://tools.example/mcp", is_shown_ours=True)}
    assert settings.model_identity


def test_its_shard_is_the_agents():
    assert read().shard is None
    told = read(AGENT_SHARD_INDEX="1", AGENT_SHARD_COUNT="3", AGENT_SHARD_EPOCH="7")
    assert told.shard == (1, 3, 7)


def test_a_coordinators_queue_is_for_others():
    assert read(AGENT_QUEUE="demo/w", AGENT_MODE="coordinator").claimed_queue == ""
    assert read(AGENT_QUEUE="demo/w", AGENT_MODE="claim").claimed_queue == "demo/w"


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.9", "127.0.0.9"), ("10.1.2.3", "127.0.0.1"), ("::1", "::1")]
)
def test_the_agent_is_met_on_loopback_whatever_the_pods_address_is(host, loopback):
    assert read(AGENT_HOST=host).loopback == loopback


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AGENT_MCP_SERVERS": '[{"name": "a"}]'}, "AGENT_MCP_SERVERS"),
        ({"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "http://far.example"}]'}, "AGENT_MCP_SERVERS: a:"),
        ({"AGENT_SUBSCRIBE": "{"}, "AGENT_SUBSCRIBE"),
        ({"OPENAI_BASE_URL": "http://far.example/v1"}, "OPENAI_BASE_URL"),
        (
            {"OPENAI_BASE_URL": "http://127.0.0.1/v1", "AGENT_MODEL_IDENTITY": "true"},
            "AGENT_MODEL_IDENTITY: OPENAI_BASE_URL is not https",
        ),
        (
            {"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "http://localhost/", "identity": true}]'},
            "AGENT_MCP_SERVERS: a:",
        ),
        ({"AGENT_MCP_SERVERS": '[{"name": "a", "endpoint": "https://b/", "identity": 1}]'}, "true or false"),
        ({"AGENT_SLOTS": "0"}, "AGENT_SLOTS"),
        ({"AGENT_SHARD_INDEX": "0"}, "AGENT_SHARD_COUNT, AGENT_SHARD_EPOCH: missing"),
        (
            {"AGENT_SHARD_INDEX": "2", "AGENT_SHARD_COUNT": "2", "AGENT_SHARD_EPOCH": "1"},
            "AGENT_SHARD_INDEX: 2 is not 0 to AGENT_SHARD_COUNT - 1, which is 1",
        ),
        ({"AGENT_INSTRUCTION": "a", "AGENT_INSTRUCTION_FILE": "/b"}, "AGENT_INSTRUCTION_FILE"),
        ({"BRIDGE_CERTIFICATE_LIFETIME": "1s"}, "BRIDGE_CERTIFICATE_LIFETIME"),
        ({"BRIDGE_FORWARD_PROT": "1"}, "is it BRIDGE_FORWARD_PORT"),
    ],
)
def test_what_cannot_be_is_named(environ, said):
    with pytest.raises(SettingsError, match=said):
        read(**environ)
