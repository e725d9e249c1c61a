"""VERB: what a verb does to a run that the model holds open, and to what would begin."""

from __future__ import annotations

from datetime import timedelta

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.errors import InvalidError, NotFoundError, UnavailableError

from ..case import Group, SkippedError, becomes, demand, never
from ..model import Say, Use
from ..sending import ended, has_ended, holding, name_of, request, send
from ..subject import Subject, is_refused
from ..world import World

GROUP = Group("verbs", World.standing)

_QUIET = 0.6


def _pause(wait: float, run_id: str = "") -> pb.PauseRequest:
    made = pb.PauseRequest(run_id=run_id)
    made.wait.FromTimedelta(timedelta(seconds=wait))
    return made


async def _state(agent: Subject, run_id: str) -> str:
    return name_of((await agent.run(run_id)).state)


@GROUP.case("VERB-PAUSE-01", "Pause holds a run at its next step: no further call of the model until Resume")
async def _pause_holds(agent: Subject) -> None:
    agent.needs("Pause")
    if not agent.manifest.surfaces.pause_holds_runs:
        raise SkippedError("not offered: its manifest says that a pause does not hold runs")
    stub = await agent.steer()
    async with holding(agent, Use(), Say("after the pause")) as held:
        try:
            said = await stub.Pause(_pause(0, held.run_id))
            states = {run.id: name_of(run.state) for run in said.runs}
            demand(held.run_id in states, f"the answer names {list(states)}, not the run {held.run_id}")
            held.talk.release()

            async def holds() -> bool:
                return await _state(agent, held.run_id) == "PAUSED"

            await becomes(holds, "the run does not become PAUSED at its next step")
            await never(
                lambda: len(held.talk.requests) > 1,
                "the model is asked while the run is paused",
                seconds=_QUIET,
            )
        finally:
            await stub.Resume(pb.ResumeRequest(run_id=held.run_id))
        run = await ended(agent, held.run_id)
        demand(run.result == "after the pause", f"resumed, the run ends with {run.status}: {run.result!r}")


@GROUP.case(
    "VERB-PAUSE-02", "Pause of the whole agent begins nothing new, Resume takes it back; the status tells"
)
async def _pause_begins_nothing(agent: Subject) -> None:
    agent.needs("Pause")
    stub = await agent.steer()
    await stub.Pause(_pause(0))
    try:
        demand((await agent.status()).paused, "the agent is paused, and its status says that it is not")
        if agent.manifest.surfaces.messages:
            await _takes_nothing(agent, "while it is paused")
    finally:
        await stub.Resume(pb.ResumeRequest())
    demand(not (await agent.status()).paused, "the agent is resumed, and its status says that it is paused")
    if agent.manifest.surfaces.messages and agent.model:
        run = await send(agent, agent.model.script(Say()))
        demand(run.state == run_pb2.RUN_STATE_COMPLETED, f"after Resume a message ends {name_of(run.state)}")


@GROUP.case("VERB-PAUSE-03", "Pause of one run lets the others go on")
async def _pause_is_of_one(agent: Subject) -> None:
    agent.needs("Pause")
    if agent.manifest.limits.slots < 2:
        raise SkippedError("not offered: its manifest says one slot")
    stub = await agent.steer()
    async with holding(agent, Use(), Say()) as held:
        try:
            await stub.Pause(_pause(0, held.run_id))
            other = await send(agent, agent.needs_model().script(Say("went on")))
            demand(other.result == "went on", f"another run ends {other.status!r} while one is paused")
        finally:
            await stub.Resume(pb.ResumeRequest(run_id=held.run_id))


@GROUP.case("VERB-PAUSE-04", "Pause answers when its wait is over, and within 0 to 5 minutes only")
async def _pause_is_bounded(agent: Subject) -> None:
    agent.needs("Pause")
    stub = await agent.steer()
    for seconds in (-1.0, 301.0):
        await is_refused(
            stub.Pause(_pause(seconds)), InvalidError, saying="wait", what=f"Pause(wait={seconds:g}s)"
        )
    async with holding(agent) as held:
        try:
            said = await stub.Pause(_pause(0.3), timeout=5)
            found = [name_of(run.state) for run in said.runs if run.id == held.run_id]
            demand(found == ["WORKING"], f"a run inside a call of the model is told as {found}, not WORKING")
        finally:
            await stub.Resume(pb.ResumeRequest())


@GROUP.case("VERB-CANCEL-01", "Cancel ends a run at once, also inside a call of the model, and tells its end")
async def _cancel_ends(agent: Subject) -> None:
    agent.needs("Cancel")
    stub = await agent.steer()
    async with holding(agent) as held:
        said = await stub.Cancel(pb.CancelRequest(run_id=held.run_id, reason="enough"), timeout=5)
        found = next((run for run in said.runs if run.id == held.run_id), None)
        demand(found is not None, f"the answer does not name the run {held.run_id}")
        assert found is not None
        demand(found.state == run_pb2.RUN_STATE_CANCELED, f"the run is {name_of(found.state)}, not CANCELED")
        demand(found.status == "cancelled", f"its status is {found.status!r}, not 'cancelled'")
        await becomes(lambda: held.talk.broken_off, "the call of the model goes on", seconds=3)


@GROUP.case("VERB-CANCEL-02", "Cancel of an unknown run is NOT_FOUND, of an ended one leaves it as it is")
async def _cancel_is_exact(agent: Subject) -> None:
    agent.needs("Cancel")
    stub = await agent.steer()
    await is_refused(
        stub.Cancel(pb.CancelRequest(run_id="no-such-run")), NotFoundError, what="Cancel of an unknown run"
    )
    run = await send(agent, agent.needs_model().script(Say("kept")))
    await stub.Cancel(pb.CancelRequest(run_id=run.id))
    after = await agent.run(run.id)
    demand(after.state == run.state and after.result == "kept", f"an ended run became {name_of(after.state)}")


@GROUP.case("VERB-CANCEL-03", "Cancel of everything ends every run, and the agent goes on")
async def _cancel_ends_all(agent: Subject) -> None:
    agent.needs("Cancel")
    stub = await agent.steer()
    async with holding(agent) as held:
        said = await stub.Cancel(pb.CancelRequest(reason="all of it"), timeout=5)
        demand(held.run_id in [run.id for run in said.runs], "the answer does not name the run")
        demand(all(map(has_ended, said.runs)), f"told as ended: {[name_of(run.state) for run in said.runs]}")
    run = await send(agent, agent.needs_model().script(Say("still here")))
    demand(run.result == "still here", f"the next message ends {run.status!r}")


@GROUP.case(
    "VERB-LAMEDUCK-01", "LameDuck makes it not ready and begins nothing, what is begun goes on; and back"
)
async def _lame_duck_flips(agent: Subject) -> None:
    agent.needs("LameDuck")
    stub = await agent.steer()
    said = await stub.LameDuck(pb.LameDuckRequest(enabled=True))
    try:
        status = await agent.status()
        demand(not said.ready and not status.ready, "a lame duck says that it is ready")
        demand(status.lame_duck, "its status says that it is no lame duck")
        demand(status.not_ready_reason, "it is not ready, and says no reason")
        if agent.manifest.surfaces.messages:
            await _takes_nothing(agent, "as a lame duck")
    finally:
        back = await stub.LameDuck(pb.LameDuckRequest(enabled=False))
    demand(back.ready and (await agent.status()).ready, "LameDuck(false) does not make it ready again")


@GROUP.case("VERB-LAMEDUCK-02", "what is begun goes on to its end while the agent is a lame duck")
async def _lame_duck_goes_on(agent: Subject) -> None:
    agent.needs("LameDuck")
    stub = await agent.steer()
    async with holding(agent, Use(), Say("to the end")) as held:
        await stub.LameDuck(pb.LameDuckRequest(enabled=True))
        try:
            held.talk.release()
            run = await ended(agent, held.run_id)
            demand(run.result == "to the end", f"the run ends {run.status!r}: {run.error}")
        finally:
            await stub.LameDuck(pb.LameDuckRequest(enabled=False))


async def _takes_nothing(agent: Subject, when: str) -> None:
    stub = await agent.steer()
    if agent.model is None:
        message, asked = pb.SendMessageRequest(text="conformance"), None
    else:
        asked = agent.model.script(Say())
        message = request(asked)
    await is_refused(stub.SendMessage(message), UnavailableError, what=f"SendMessage {when}")
    demand(asked is None or not asked.requests, f"a message is begun {when}")
