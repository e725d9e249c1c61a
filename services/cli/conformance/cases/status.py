"""STATUS: what the agent says that it is doing is what it does."""

from __future__ import annotations

from agentctl.agent.v1 import run_pb2
from libs.contract.statuses import Status

from ..case import Group, becomes, demand
from ..model import Fail, Say
from ..sending import holding, send
from ..subject import Subject
from ..world import World

GROUP = Group("status", World.standing)


@GROUP.case("STATUS-01", "an idle agent is ready, counts its time, and has free slots up to its limit")
async def _is_ready(agent: Subject) -> None:
    if agent.process is None:  # whoever owns it may have paused it
        status = await agent.status()
        demand(status.ready or status.not_ready_reason, "it is not ready, and says no reason")
    else:
        status = await becomes(lambda: _ready(agent), "it is not ready", seconds=10)
        reason = status.not_ready_reason
        demand(not reason, f"it is ready, and yet not_ready_reason is {reason!r}")
    demand(0 <= status.free_slots <= agent.manifest.limits.slots,
           f"free_slots is {status.free_slots} of {agent.manifest.limits.slots}")  # fmt: skip
    later = await agent.status()
    demand(later.uptime.ToTimedelta() > status.uptime.ToTimedelta(), "uptime does not grow")


async def _ready(agent: Subject) -> object:
    status = await agent.status()
    return status if status.ready else None


@GROUP.case("STATUS-02", "a run under way is listed with its id, trigger, state and use, and takes a slot")
async def _lists_runs(agent: Subject) -> None:
    free = (await agent.status()).free_slots
    async with holding(agent) as held:
        status = await agent.status()
        found = next((run for run in status.runs if run.id == held.run_id), None)
        demand(
            found is not None, f"run {held.run_id} is under way and not among {[r.id for r in status.runs]}"
        )
        assert found is not None
        demand(found.state == run_pb2.RUN_STATE_WORKING, f"its state is {_name(found.state)}, not WORKING")
        demand(found.trigger == run_pb2.TRIGGER_MESSAGE, f"its trigger is {found.trigger}, not MESSAGE")
        demand(not found.status, f"it has not ended, and yet its status is {found.status!r}")
        demand(
            status.free_slots == free - 1, f"free_slots was {free}, and is {status.free_slots} beside a run"
        )


@GROUP.case("STATUS-03", "runs that ended are counted by the contract's words, and all use is added up")
async def _counts(agent: Subject) -> None:
    model = agent.needs_model()
    before = await agent.status()
    done = model.script(Say(input_tokens=101, output_tokens=17))
    broken = model.script(Fail(400, "refused by the script"))
    first, second = await send(agent, done), await send(agent, broken)
    after = await agent.status()
    unknown = set(after.ended_runs) - {word.value for word in Status}
    newer = agent.is_newer(agent.manifest.contract_version)
    demand(newer or not unknown, f"ended_runs has words that there are not: {', '.join(sorted(unknown))}")
    for run in (first, second):
        grown = after.ended_runs[run.status] - before.ended_runs[run.status]
        demand(grown >= 1, f"a run ended {run.status!r}, and ended_runs[{run.status!r}] did not grow")
    grown = after.usage.input_tokens - before.usage.input_tokens
    demand(grown == 101, f"usage.input_tokens grew by {grown}, the model counted 101")
    grown = after.usage.output_tokens - before.usage.output_tokens
    demand(grown == 17, f"usage.output_tokens grew by {grown}, the model counted 17")


def _name(state: run_pb2.RunState.ValueType) -> str:
    return run_pb2.RunState.Name(state).removeprefix("RUN_STATE_")
