"""LIMIT: what a tool does wrong is told to the model, and the run goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.exits import Exit

from ..case import Group, SkippedError, demand
from ..model import Say, Talk, Use
from ..tools import LARGE, NAME
from ..world import World
from .exits import launching

_ERRORS_BYTES = 256 * 1024


@asynccontextmanager
async def _start(world: World) -> AsyncIterator[World]:
    async with launching(world):
        tools = await world.with_tools()
        talk = world.model.script(Say())
        environment = world.settings("once", AGENT_INSTRUCTION=f"Do as the script says. {talk.word}")
        async with world.started(environment | world.tool_setting(tools.endpoint)) as process:
            code = await process.ended(30)
        if code == Exit.USAGE:
            raise SkippedError(f"not offered: AGENT_MCP_SERVERS ends with 2{process.last_words()}")
        demand(
            not talk.requests or talk.requests[-1].get("tools"),
            f"{NAME} is there, and no tool is offered to the model",
        )
        yield world


GROUP = Group("limits", _start)


async def _told(world: World, tool: str, **more: str) -> str:
    """What the model was told of a call."""
    tools = await world.with_tools()
    before = len(tools.calls)
    _, talk = await world.ends(
        Exit.OK,
        Use(tool, {"text": "conformance"}),
        Say(),
        seconds=30,
        extra=world.tool_setting(tools.endpoint),
        **more,
    )
    called = [name for name, _ in tools.calls[before:]]
    demand(called == [tool], f"the model asked for {tool}; the server was called for {called}")
    return _last(talk)


def _last(talk: Talk) -> str:
    demand(len(talk.requests) == 2, f"the model was asked {len(talk.requests)} times, it has to be 2")
    said = [message for message in talk.requests[-1]["messages"] if message.get("role") == "tool"]
    demand(len(said) == 1, f"the model was told of {len(said)} calls of tools, it has to be 1")
    return str(said[0].get("content"))


@GROUP.case(
    "LIMIT-01", "a tool is called with the model's arguments, and the model is told its result", seconds=40
)
async def _calls(world: World) -> None:
    tools = await world.with_tools()
    told = await _told(world, "note")
    demand(tools.texts("note")[-1] == "conformance", f"the tool got {tools.texts('note')[-1]!r}")
    demand("noted" in told, f"the model was told {told[:200]!r}, the tool said 'noted'")


@GROUP.case("LIMIT-02", "a tool's own error is told to the model, and does not end the run", seconds=40)
async def _errors(world: World) -> None:
    told = await _told(world, "fail")
    demand(
        "failure by the script" in told,
        f"the model was told {told[:200]!r}, the tool said 'failure by the script'",
    )


@GROUP.case(
    "LIMIT-03", "a tool that hangs past AGENT_TOOL_TIMEOUT is given up, and the model is told", seconds=40
)
async def _hangs(world: World) -> None:
    told = await _told(world, "hang", AGENT_TOOL_TIMEOUT="1s")
    demand(told.strip(), "the model was told nothing of a tool that hangs")


@GROUP.case(
    "LIMIT-04",
    "a tool's result over 256 KiB is replaced by an error that says its size and the bound",
    seconds=40,
)
async def _overflows(world: World) -> None:
    told = await _told(world, "large")
    demand(len(told) < 4096, f"the model was told {len(told)} characters")
    sizes = (str(LARGE), f"{LARGE:,}", f"{LARGE // 1024} KiB")
    demand(
        any(size in told for size in sizes),
        f"the model was told {told!r}, which does not say the size, {LARGE}",
    )
    bounds = (str(_ERRORS_BYTES), f"{_ERRORS_BYTES:,}", "256 KiB")
    demand(
        any(bound in told for bound in bounds), f"the model was told {told!r}, which does not say the bound"
    )


@GROUP.case("LIMIT-05", "a call of a tool that there is not is told to the model", seconds=40)
async def _unknown(world: World) -> None:
    tools = await world.with_tools()
    before = len(tools.calls)
    _, talk = await world.ends(
        Exit.OK, Use("no_such_tool"), Say(), seconds=30, extra=world.tool_setting(tools.endpoint)
    )
    demand(_last(talk).strip(), "the model was told nothing")
    demand(len(tools.calls) == before, "the server was called")
