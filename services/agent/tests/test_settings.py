from __future__ import annotations

from datetime import timedelta

import pytest

from libs.settings import SettingsError, load
from services.agent.settings import Settings

GOOD = {
    "AGENT_QUEUE": "default/docs",
    "AGENT_MODEL": "m",
    "AGENT_INSTRUCTION": "Summarize.",
    "OPENAI_BASE_URL": "http://127.0.0.1:7480/v1",
    "OPENAI_API_KEY": "key",
    "AGENTCTL_TLS_DIR": "/tls",
}


def test_a_good_environment():
    settings = load(Settings, "AGENT_", GOOD | {"AGENT_LEASE": "1m"})
    assert settings.lease == timedelta(minutes=1)
    assert settings.prompt() == "Summarize."
    assert settings.key() == "key"
    assert "key" not in repr(settings).replace("api_key", "")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"AGENT_QUEUE": "docs"}, "AGENT_QUEUE"),
        ({"AGENT_QUEUE": "de fault/docs"}, "AGENT_QUEUE"),
        ({"AGENT_MODEL": ""}, "AGENT_MODEL"),
        ({"AGENT_INSTRUCTION": ""}, "AGENT_INSTRUCTION"),
        ({"AGENT_INSTRUCTION_FILE": "/x"}, "AGENT_INSTRUCTION_FILE"),
        ({"OPENAI_API_KEY_FILE": "/x"}, "OPENAI_API_KEY_FILE"),
        ({"OPENAI_BASE_URL": "http://models.example/v1"}, "OPENAI_BASE_URL"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1.example/v1"}, "OPENAI_BASE_URL"),
        ({"OPENAI_BASE_URL": "ftp://127.0.0.1"}, "OPENAI_BASE_URL"),
        ({"OPENAI_BASE_URL": ""}, "OPENAI_BASE_URL"),
        ({"AGENT_INSTRUCTION": "caf\udce9"}, "AGENT_INSTRUCTION"),
        ({"AGENT_SLOTS": "0"}, "AGENT_SLOTS"),
        ({"AGENT_SLOTS": "many"}, "AGENT_SLOTS"),
        ({"AGENT_LEASE": "1ms"}, "AGENT_LEASE"),
        ({"AGENT_LEESE": "1m"}, "AGENT_LEASE"),
        ({"AGENTCTL_COORDINATION_ADDRESS": "localhost"}, "AGENTCTL_COORDINATION_ADDRESS"),
    ],
)
def test_a_bad_environment_is_refused_by_name(change, named):
    with pytest.raises(SettingsError, match=named):
        load(Settings, "AGENT_", GOOD | change)


@pytest.mark.parametrize("url", ["https://api.example/v1", "http://[::1]:1/v1", "http://localhost:1/v1"])
def test_a_safe_endpoint(url):
    assert load(Settings, "AGENT_", GOOD | {"OPENAI_BASE_URL": url}).base_url == url


def test_files_are_read_when_asked_for(tmp_path):
    instruction, key = tmp_path / "instruction.txt", tmp_path / "key"
    environ = {
        name: value for name, value in GOOD.items() if name not in ("AGENT_INSTRUCTION", "OPENAI_API_KEY")
    }
    environ |= {"AGENT_INSTRUCTION_FILE": str(instruction), "OPENAI_API_KEY_FILE": str(key)}
    settings = load(Settings, "AGENT_", environ)
    with pytest.raises(ValueError, match="AGENT_INSTRUCTION_FILE"):
        settings.prompt()
    instruction.write_text(" \n")
    with pytest.raises(ValueError, match="AGENT_INSTRUCTION_FILE"):
        settings.prompt()
    instruction.write_text("Summarize.")
    assert settings.prompt() == "Summarize."
    key.write_text("first\n")
    assert settings.key() == "first"
    key.write_text("second\n")
    assert settings.key() == "second"
