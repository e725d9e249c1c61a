"""The environment as a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from libs.settings import SettingsError, describe, load


@dataclass(frozen=True)
class Settings:
    """Of a made-up service."""

    queue: str
    """Which queue.
    It must exist."""

    tls_dir: Path = field(default=Path("/tls"), metadata={"env": "AGENTCTL_TLS_DIR"})
    """Folder of our certificate."""

    store: Literal["memory", "postgres"] = "memory"
    size: int = 3
    ratio: float = 0.5
    strict: bool = True
    wait: timedelta = timedelta(minutes=5)
    labels: tuple[str, ...] = ()
    limit: int | None = None
    dsn: str = field(default="", metadata={"secret": True})

    def __post_init__(self) -> None:
        if self.size > 100:
            raise ValueError("size is at most 100")


@dataclass(frozen=True)
class More(Settings):
    extra: int = 0
    """On top."""


def settings(**variables):
    return load(Settings, "DEMO_", {"DEMO_QUEUE": "a/b", **variables})


def problems(variables):
    with pytest.raises(SettingsError) as wrong:
        load(Settings, "DEMO_", variables)
    return str(wrong.value).splitlines()


def test_defaults_hold_where_nothing_is_said():
    assert settings(PATH="/bin", DEMOLITION="x") == Settings(queue="a/b")


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("DEMO_QUEUE", "", ""),
        ("AGENTCTL_TLS_DIR", "/run/tls", Path("/run/tls")),
        ("DEMO_STORE", "postgres", "postgres"),
        ("DEMO_SIZE", "-7", -7),
        ("DEMO_RATIO", "1e-3", 0.001),
        ("DEMO_STRICT", "false", False),
        ("DEMO_WAIT", "300ms", timedelta(milliseconds=300)),
        ("DEMO_WAIT", "30s", timedelta(seconds=30)),
        ("DEMO_WAIT", "1.5h", timedelta(minutes=90)),
        ("DEMO_WAIT", "2d", timedelta(days=2)),
        ("DEMO_LABELS", "a, b,", ("a", "b")),
        ("DEMO_LABELS", "", ()),
        ("DEMO_LIMIT", "5", 5),
        ("DEMO_LIMIT", "", None),
    ],
)
def test_each_type_is_read(variable, text, value):
    name = variable.removeprefix("DEMO_").removeprefix("AGENTCTL_").lower()
    assert getattr(settings(**{variable: text}), name) == value


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("AGENTCTL_TLS_DIR", "", "a path"),
        ("DEMO_STORE", "Memory", "one of memory, postgres"),
        ("DEMO_SIZE", "3.0", "a whole number"),
        ("DEMO_SIZE", "", "a whole number"),
        ("DEMO_RATIO", "nan", "a number"),
        ("DEMO_STRICT", "1", "true or false"),
        ("DEMO_WAIT", "30", "a duration such as 300ms, 30s, 5m or 1h"),
        ("DEMO_WAIT", "-1s", "a duration such as 300ms, 30s, 5m or 1h"),
        ("DEMO_WAIT", "9" * 40 + "d", "a duration such as 300ms, 30s, 5m or 1h"),
        ("DEMO_LIMIT", "many", "a whole number, or empty"),
    ],
)
def test_what_is_not_of_the_type_is_named_with_what_is_allowed(variable, text, allowed):
    assert problems({"DEMO_QUEUE": "", variable: text}) == [f"{variable}: {text!r} is not {allowed}"]


def test_all_problems_are_told_at_once():
    assert problems({"DEMO_SIZE": "x", "DEMO_WIAT": "1s", "DEMO_Z": ""}) == [
        "DEMO_QUEUE is missing: text",
        "DEMO_SIZE: 'x' is not a whole number",
        "DEMO_WIAT is not a setting; is it DEMO_WAIT?",
        "DEMO_Z is not a setting",
    ]


def test_a_secret_is_never_shown():
    @dataclass(frozen=True)
    class Sealed:
        pin: int = field(metadata={"secret": True})

    with pytest.raises(SettingsError, match=r"^DEMO_PIN: its value is not a whole number$"):
        load(Sealed, "DEMO_", {"DEMO_PIN": "hunter2"})
    with pytest.raises(SettingsError) as unknown:
        load(Settings, "DEMO_", {"DEMO_QUEUE": "", "DEMO_PASSWORD": "hunter2"})
    assert "hunter2" not in str(unknown.value)


def test_a_rule_of_the_class_is_a_problem_like_others():
    with pytest.raises(SettingsError, match="size is at most 100"):
        settings(DEMO_SIZE="101")


def test_the_help_has_every_variable_with_type_default_and_docstring():
    text = describe(More, "DEMO_")
    assert text.splitlines()[:4] == [
        "DEMO_QUEUE  (text; required)",
        "    Which queue. It must exist.",
        "AGENTCTL_TLS_DIR  (a path; default: /tls)",
        "    Folder of our certificate.",
    ]
    for line in [
        "DEMO_STORE  (one of memory, postgres; default: memory)",
        "DEMO_STRICT  (true or false; default: true)",
        "DEMO_WAIT  (a duration such as 300ms, 30s, 5m or 1h; default: 5m)",
        "DEMO_LABELS  (a list, comma separated; default: empty)",
        "DEMO_LIMIT  (a whole number, or empty; default: empty)",
        "DEMO_EXTRA  (a whole number; default: 0)\n    On top.",
    ]:
        assert line in text


@pytest.mark.parametrize("text", ["0s", "300ms", "1500ms", "30s", "90m", "1h", "2d"])
def test_a_default_duration_is_shown_as_it_is_written(text):
    @dataclass(frozen=True)
    class Timed:
        wait: timedelta = load(Settings, "DEMO_", {"DEMO_QUEUE": "", "DEMO_WAIT": text}).wait

    assert f"default: {text})" in describe(Timed, "DEMO_")
