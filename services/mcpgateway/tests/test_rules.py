from __future__ import annotations

from typing import Any

import pytest

from libs.errors import InvalidError, PreconditionError, UnavailableError
from libs.resources.pool import ToolRules

from ..breaker import Breaker
from ..rules import ArgumentsError, ToolDeniedError, check_call, is_allowed
from ..sets import Server, read_set


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (ToolRules(), {"read_a", "read_b", "write", "Write"}),
        (ToolRules(allow=["read_*"]), {"read_a", "read_b"}),
        (ToolRules(allow=[]), set()),
        (ToolRules(deny=["write"]), {"read_a", "read_b", "Write"}),
        (ToolRules(allow=["read_*", "write"], deny=["*_b"]), {"read_a", "write"}),
    ],
)
def test_deny_wins_over_allow(rules: ToolRules, allowed: set[str]) -> None:
    assert {each for each in ("read_a", "read_b", "write", "Write") if is_allowed(rules, each)} == allowed


def _server(schema: dict[str, Any]) -> Server:
    return Server(name="s", endpoint="http://s.test/mcp", arguments={"t": schema})


def test_arguments_that_do_not_satisfy_are_not_quoted() -> None:
    with pytest.raises(ArgumentsError) as caught:
        check_call(_server({"properties": {"path": {"enum": ["/tmp"]}}}), "t", {"path": "/etc/shadow"})
    assert "shadow" not in str(caught.value)
    assert "path" in str(caught.value)


def test_other_tools_have_no_schema() -> None:
    check_call(_server({"required": ["x"]}), "other", {})
    with pytest.raises(ArgumentsError):
        check_call(_server({"required": ["x"]}), "t", {})


def test_a_pattern_takes_time_that_is_linear_in_the_text() -> None:
    with pytest.raises(ArgumentsError):
        check_call(_server({"properties": {"x": {"pattern": "^(a+)+$"}}}), "t", {"x": "a" * 10_000 + "!"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7},
        {"$ref": "https://evil.test/schema"},
        {"properties": {"x": {"$ref": "#"}}},
        {"allOf": [{"patternProperties": {"(a+)+$": {}}}]},
        {"properties": {"x": {"pattern": "(?=a)"}}},
    ],
)
def test_a_schema_that_could_harm_us_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(PreconditionError):
        check_call(_server(schema), "t", {"x": "a"})


def test_a_denied_tool_is_denied_before_its_arguments_are_looked_at() -> None:
    server = Server(name="s", endpoint="http://s.test/mcp", tools=ToolRules(deny=["t"]))
    with pytest.raises(ToolDeniedError):
        check_call(server, "t", {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a__b"},
        {"name": "A"},
        {"endpoint": "file:///etc/passwd"},
        {"endpoint": "http://user:pass@s.test/"},
        {"endpoint": "http://s.test/?key=1"},
        {"endpoint": "http://s.test:99999/"},
        {"auth": {"mode": "header", "name": "Host", "secretRef": {"name": "a", "key": "b"}}},
        {"auth": {"mode": "header", "name": "X\r\nY", "secretRef": {"name": "a", "key": "b"}}},
        {"auth": {"mode": "oauth", "clientId": "x"}},
        {"auth": {"mode": "magic"}},
        {"tools": {"allow": "all"}},
    ],
)
def test_a_set_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    spec = {"servers": [{"name": "s", "endpoint": "http://s.test/mcp", **wrong}]}
    with pytest.raises(InvalidError, match="MCPServerSet tools"):
        read_set({"metadata": {"namespace": "demo", "name": "tools"}, "spec": spec})


def test_a_breaker_lets_one_try_after_a_while() -> None:
    now = 0.0
    breaker = Breaker("s", 2, 10.0, lambda: now)
    for _ in range(2):
        breaker.enter()
        breaker.failed()
    with pytest.raises(UnavailableError):
        breaker.enter()
    now = 10.0
    breaker.enter()
    with pytest.raises(UnavailableError):
        breaker.enter()
    breaker.succeeded()
    breaker.enter()
    breaker.enter()
