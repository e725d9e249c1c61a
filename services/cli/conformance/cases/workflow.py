"""WORK: the steps of a document in their order, held and ended between steps, and kept over a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.exits import Exit

from ..case import Group, SkippedError, becomes, demand, never
from ..model import Fail, Say, Talk
from ..world import World


def _settings(world: World, name: str, *talks: Talk, **more: str) -> dict[str, str]:
    """The environment of a workflow with a step for each of these."""
    steps = [
        {"name": f"step-{n}", "instruction": f"Do as the script says. {talk.word}"}
        for n, talk in enumerate(talks, 1)
    ]
    file = world.folder / f"{name}.json"
    file.write_text(json.dumps({"steps": steps}))
    environment = world.settings("workflow", AGENT_WORKFLOW_FILE=str(file), **more)
    del environment["AGENT_INSTRUCTION"]
    return environment


@asynccontextmanager
async def _start(world: World) -> AsyncIterator[World]:
    world.needs_launch()
    async with world.started(_settings(world, "probe", world.model.script(Say()))) as process:
        code = await process.ended(30)
    if code == Exit.USAGE:
        raise SkippedError(f"not offered: mode workflow ends with 2{process.last_words()}")
    yield world


GROUP = Group("workflow", _start)


@GROUP.case(
    "WORK-01", "steps run one after the other, each is handed what came of the one before: 0", seconds=40
)
async def _in_order(world: World) -> None:
    model = world.model
    first, second = model.script(Say("result-of-the-first")), model.script(Say("result-of-the-second"))
    async with world.started(_settings(world, "order", first, second)) as process:
        code = await process.ended(30)
    demand(code == Exit.OK, f"exit code {code}, it has to be 0{process.last_words()}")
    demand(len(first.requests) == len(second.requests) == 1, "a step was not done exactly once")
    demand(
        "result-of-the-first" in json.dumps(second.requests), "the second step is not told the first's result"
    )
    demand("result-of-the-second" in process.stdout, f"stdout has {process.stdout[:200]!r}")


@GROUP.case(
    "WORK-02",
    "a step that is refused ends the workflow with its code, and no later step is begun",
    seconds=40,
)
async def _fails(world: World) -> None:
    first, second = world.model.script(Say(refusal="no")), world.model.script(Say())
    async with world.started(_settings(world, "fails", first, second)) as process:
        code = await process.ended(30)
    demand(code == Exit.SEMANTIC, f"exit code {code}, it has to be 5{process.last_words()}")
    demand(not second.requests, "a step after the refused one was begun")


@GROUP.case("WORK-03", "Pause holds it between steps, Resume lets it go on", seconds=40)
async def _holds(world: World) -> None:
    first, second = world.model.script(Say(), hold=(1,)), world.model.script(Say())
    async with world.agent(_settings(world, "holds", first, second)) as agent:
        agent.needs("Pause")
        await becomes(lambda: first.requests, "the first step is not begun", seconds=10)
        stub = await agent.steer()
        request = pb.PauseRequest()
        request.wait.FromNanoseconds(0)
        await stub.Pause(request)
        first.release()
        await becomes(lambda: first.answered, "the first step is not answered")
        await never(lambda: second.requests, "a step is begun while the agent is paused", seconds=0.6)
        await stub.Resume(pb.ResumeRequest())
        assert agent.process is not None
        code = await agent.process.ended(15)
    demand(code == Exit.OK and second.requests, f"after Resume it ends with {code}")


@GROUP.case("WORK-04", "with AGENT_STATE_DIR a finished step is not done again after kill -9", seconds=50)
async def _is_kept(world: World) -> None:
    first, second = world.model.script(Say("kept-result")), world.model.script(Say(), hold=(1,))
    state = world.folder / "state"
    state.mkdir(exist_ok=True)
    settings = _settings(
        world, "kept", first, second, AGENT_STATE_DIR=str(state), AGENT_RUN_ID="conformance-kept"
    )
    async with world.started(settings) as process:
        await becomes(lambda: second.requests, "the second step is not begun", seconds=15)
        await process.kill()
    second.release()
    async with world.started(settings) as process:
        code = await process.ended(30)
    demand(code == Exit.OK, f"started again, it ends with {code}{process.last_words()}")
    demand(len(first.requests) == 1, f"the finished step was done {len(first.requests)} times")
    demand("kept-result" in json.dumps(second.requests[-1]), "the next step is not told the kept result")


@GROUP.case("WORK-05", "a document that makes no sense: 2, and no step is begun", seconds=30)
async def _is_checked(world: World) -> None:
    talk = world.model.script(Fail(500))
    settings = _settings(world, "nonsense", talk)
    (world.folder / "nonsense.json").write_text(
        '{"steps": [{"name": "a", "needs": ["b"], "instruction": "x"}]}'
    )
    async with world.started(settings) as process:
        code = await process.ended(20)
    demand(code == Exit.USAGE, f"exit code {code}, it has to be 2{process.last_words()}")
    demand(not talk.requests, "a step was begun")
