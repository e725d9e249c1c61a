"""EXIT: in mode once the process ends with the code that the table has for what became of its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.exits import Exit

from ..case import Group, SkippedError, becomes, demand
from ..model import Fail, Reply, Say, Use
from ..world import World, free_port


@asynccontextmanager
async def launching(world: World) -> AsyncIterator[World]:
    """The world itself, if an agent can be started in it in mode once. SkippedError."""
    world.needs_launch()
    if world.offers_once is None:
        async with world.once(Say()) as (process, _):
            code = await process.ended(30)
        world.offers_once = code != Exit.USAGE
        world.refusal_of_once = process.last_words()
    if not world.offers_once:
        raise SkippedError(f"not offered: mode once ends with 2{world.refusal_of_once}")
    yield world


GROUP = Group("exits", launching)


@GROUP.case("EXIT-01", "done: 0, and the result is on stdout", seconds=30)
async def _done(world: World) -> None:
    process, talk = await world.ends(Exit.OK, Say("the result of the run"))
    demand("the result of the run" in process.stdout, f"stdout has {process.stdout[:200]!r}")
    demand(len(talk.requests) == 1, f"the model was asked {len(talk.requests)} times")


@GROUP.case("EXIT-02", "bad configuration: 2, and nobody was connected to before", seconds=40)
async def _bad_configuration(world: World) -> None:
    for wrong in (
        {"AGENT_MAX_STEPS": "many"},
        {"AGENT_MODE": "sometimes"},
        {"AGENT_DEADLINE": "soon"},
        {"AGENT_MCP_SERVERS": "{not json"},
        {"AGENTCTL_TLS_DIR": str(world.folder / "no-such-folder")},
    ):
        async with _listening() as (port, connections):
            environment = world.settings("once", OPENAI_BASE_URL=f"http://127.0.0.1:{port}/v1") | wrong
            async with world.started(environment) as process:
                code = await process.ended(15)
        name, value = next(iter(wrong.items()))
        demand(code == Exit.USAGE, f"{name}={value} ends with {code}, it has to be 2{process.last_words()}")
        demand(not connections, f"{name}={value}: the model was connected to before the end")
        demand(process.stderr.strip(), f"{name}={value} ends without a word on stderr")


@GROUP.case("EXIT-03", "the model cannot be reached: 4", seconds=50)
async def _model_away(world: World) -> None:
    await world.ends(Exit.INTELLIGENCE, seconds=45, OPENAI_BASE_URL=f"http://127.0.0.1:{free_port()}/v1",
                     AGENT_START_TIMEOUT="1s")  # fmt: skip


@GROUP.case("EXIT-04", "the model refuses our key: 4, and does not get the key again and again", seconds=30)
async def _model_refuses_us(world: World) -> None:
    _, talk = await world.ends(Exit.INTELLIGENCE, Fail(401, "no such key"))
    demand(len(talk.requests) <= 2, f"it was asked {len(talk.requests)} times with a refused key")


@GROUP.case("EXIT-05", "a failure of the model that passes is tried again: 0", seconds=40)
async def _model_comes_back(world: World) -> None:
    _, talk = await world.ends(Exit.OK, Fail(503), Say("at last"), seconds=35)
    demand(len(talk.requests) == 2, f"the model was asked {len(talk.requests)} times, it has to be 2")


@GROUP.case("EXIT-06", "the model fails whenever it is asked: 4, after some tries", seconds=60)
async def _model_stays_broken(world: World) -> None:
    _, talk = await world.ends(Exit.INTELLIGENCE, Fail(500), seconds=55)
    demand(
        2 <= len(talk.requests) <= 5, f"the model was asked {len(talk.requests)} times, it has to be 2 to 5"
    )


@GROUP.case("EXIT-07", "the model refuses the task: 5", seconds=30)
async def _refused(world: World) -> None:
    await world.ends(Exit.SEMANTIC, Say(refusal="I will not do that"))


@GROUP.case("EXIT-08", "cancelled: 5, and the caller of Cancel is answered", seconds=40)
async def _cancelled(world: World) -> None:
    talk = world.model.script(Say(), hold=(1,))
    environment = world.settings("once", AGENT_INSTRUCTION=f"Do as the script says. {talk.word}")
    async with world.agent(environment) as agent:
        agent.needs("Cancel")
        await becomes(lambda: talk.requests, "the model is not asked", seconds=10)
        said = await (await agent.steer()).Cancel(pb.CancelRequest(reason="enough"), timeout=8)
        demand(
            [run.status for run in said.runs] == ["cancelled"], f"told: {[run.status for run in said.runs]}"
        )
        assert agent.process is not None
        code = await agent.process.ended(10)
    demand(code == Exit.SEMANTIC, f"exit code {code}, it has to be 5")


@GROUP.case("EXIT-09", "a tool server that it needs is away: 6", seconds=50)
async def _server_away(world: World) -> None:
    away = world.tool_setting(f"http://127.0.0.1:{free_port()}/mcp")
    async with world.once(Say(), AGENT_START_TIMEOUT="1s", extra=away) as (process, _):
        code = await process.ended(45)
    if code == Exit.USAGE:
        raise SkippedError(f"not offered: AGENT_MCP_SERVERS ends with 2{process.last_words()}")
    demand(code == Exit.SERVER, f"exit code {code}, it has to be 6{process.last_words()}")


@GROUP.case("EXIT-10", "more turns than AGENT_MAX_STEPS: 7, and not one more is taken", seconds=30)
async def _steps(world: World) -> None:
    _, talk = await world.ends(Exit.BUDGET, *_calls(9), Say(), AGENT_MAX_STEPS="2")
    demand(len(talk.requests) <= 2, f"the model was asked {len(talk.requests)} times, with 2 steps allowed")


@GROUP.case("EXIT-11", "more tokens than AGENT_MAX_TOKENS: 7", seconds=30)
async def _tokens(world: World) -> None:
    _, talk = await world.ends(Exit.BUDGET, *_calls(9, input_tokens=400), Say(), AGENT_MAX_TOKENS="1000")
    demand(
        len(talk.requests) <= 3,
        f"the model was asked {len(talk.requests)} times, 403 tokens each, 1000 allowed",
    )


@GROUP.case("EXIT-12", "longer than AGENT_DEADLINE, inside a call of the model: 7", seconds=40)
async def _deadline(world: World) -> None:
    async with world.once(Say(), hold=(1,), AGENT_DEADLINE="1s") as (process, talk):
        code = await process.ended(10)
        demand(talk.requests, "the model was not asked")
    demand(code == Exit.BUDGET, f"exit code {code}, it has to be 7{process.last_words()}")


@GROUP.case(
    "EXIT-13", "an answer that the provider cut off for its length: 3, and the part is on stdout", seconds=30
)
async def _cut_off(world: World) -> None:
    process, _ = await world.ends(Exit.PARTIAL, Say("a part of the answer", finish="length"))
    demand("a part of the answer" in process.stdout, f"stdout has {process.stdout[:200]!r}")


@GROUP.case("EXIT-14", "an answer of more than 1 MiB: 3", seconds=40)
async def _too_large(world: World) -> None:
    await world.ends(Exit.PARTIAL, Say("x" * (1024 * 1024 + 1)), seconds=30)


@GROUP.case("EXIT-15", "the same tool call with the same arguments 5 times in a row: 3", seconds=30)
async def _goes_round(world: World) -> None:
    _, talk = await world.ends(Exit.PARTIAL, *[Use(arguments={"text": "again"})] * 9, Say())
    demand(len(talk.requests) <= 6, f"the model was asked {len(talk.requests)} times")


def _calls(count: int, *, input_tokens: int = 11) -> list[Reply]:
    """Calls of a tool that differ, so that only the limit ends them."""
    return [Use(arguments={"text": str(n)}, input_tokens=input_tokens) for n in range(count)]


@asynccontextmanager
async def _listening() -> AsyncIterator[tuple[int, list[object]]]:
    """A port, and who connected to it."""
    connections: list[object] = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], connections
