"""The contract's nouns as messages of `agentctl.agent.v1`, and back.

Read back, a status word that is not known here is taken for the one that its state amounts to: a newer minor
version may have more of them. States and triggers are closed within a major version: ValueError.
"""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import manifest_pb2, run_pb2

from .agent import Condition
from .events import Event
from .manifest import Limits, Manifest, Placement, Surfaces, ToolServer
from .run import Run, State, Trigger, Usage
from .statuses import Status
from .text import clean, head

MAX_ERROR_BYTES = 4096
"""More of an error's text is cut off, so that a page of runs fits an answer."""

_STATES = {state: run_pb2.RunState.Value(f"RUN_STATE_{state.name}") for state in State}
_TRIGGERS = {trigger: run_pb2.Trigger.Value(f"TRIGGER_{trigger.name}") for trigger in Trigger}
_STATES_BACK = {number: state for state, number in _STATES.items()}
_TRIGGERS_BACK = {number: trigger for trigger, number in _TRIGGERS.items()}
_USUAL = {
    State.COMPLETED: Status.COMPLETED,
    State.REFUSED: Status.REFUSED,
    State.CANCELED: Status.CANCELLED,
    State.FAILED: Status.FAILED,
}


def duration(value: timedelta) -> Duration:
    """The same span on the wire."""
    message = Duration()
    message.FromTimedelta(value)
    return message


# --- Runs ------------------------------------------------------------------------------------


def run_to_pb(run: Run, *, with_result: bool = True) -> run_pb2.Run:
    """A run; lists of runs are sent without results."""
    return run_pb2.Run(
        id=run.id,
        trigger=_TRIGGERS[run.trigger],
        context_id=run.context_id,
        state=_STATES[run.state],
        status=run.status or "",
        error=head(run.error, MAX_ERROR_BYTES),
        result=clean(run.result) if with_result else "",
        usage=usage_to_pb(run.usage),
        age=duration(run.age),
        took=None if run.took is None else duration(run.took),
        activity=clean(run.activity),
        subject=clean(run.subject),
    )


def run_from_pb(message: run_pb2.Run) -> Run:
    """ValueError for a state or trigger that the contract has not got."""
    state = state_from_pb(message.state)
    if message.trigger not in _TRIGGERS_BACK:
        raise ValueError(f"run {message.id!r}: {message.trigger} is no trigger")
    if state is None:
        raise ValueError(f"run {message.id!r}: {message.state} is no state")
    return Run(
        id=message.id,
        trigger=_TRIGGERS_BACK[message.trigger],
        state=state,
        status=_status(message.status, state),
        error=message.error,
        result=message.result,
        context_id=message.context_id,
        usage=usage_from_pb(message.usage),
        age=message.age.ToTimedelta(),
        took=message.took.ToTimedelta() if message.HasField("took") else None,
        activity=message.activity,
        subject=message.subject,
    )


def state_from_pb(number: int) -> State | None:
    """The state of a number; None if it has none."""
    return _STATES_BACK.get(run_pb2.RunState.ValueType(number))


def usage_to_pb(usage: Usage) -> run_pb2.Usage:
    """What was used."""
    return run_pb2.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        steps=usage.steps,
        tool_calls=usage.tool_calls,
    )


def usage_from_pb(message: run_pb2.Usage) -> Usage:
    """What was used."""
    return Usage(message.input_tokens, message.output_tokens, message.steps, message.tool_calls)


def _status(word: str, state: State) -> Status | None:
    if not state.ended:
        return None
    try:
        return Status(word)
    except ValueError:
        return _USUAL[state]


# --- Events ----------------------------------------------------------------------------------


def event_to_pb(event: Event) -> run_pb2.Event:
    """One event."""
    return run_pb2.Event(
        sequence=event.sequence,
        at=duration(event.at),
        name=event.name,
        run_id=event.run_id,
        fields=dict(event.fields),
    )


def event_from_pb(message: run_pb2.Event) -> Event:
    """One event, whether its name is known or not."""
    return Event(
        message.sequence, message.at.ToTimedelta(), message.name, message.run_id, dict(message.fields)
    )


# --- The manifest ----------------------------------------------------------------------------


def manifest_to_pb(manifest: Manifest) -> manifest_pb2.Manifest:
    """What an agent says of itself."""
    at, limits, surfaces = manifest.placement, manifest.limits, manifest.surfaces
    return manifest_pb2.Manifest(
        contract_version=manifest.contract_version,
        implementation=manifest.implementation,
        implementation_version=manifest.implementation_version,
        mode=manifest.mode,
        placement=manifest_pb2.Placement(
            namespace=at.namespace, agent=at.agent, pod=at.pod, pod_uid=at.pod_uid, node=at.node
        ),
        model=manifest.model,
        tool_servers=[
            manifest_pb2.ToolServer(name=each.name, tags=each.tags) for each in manifest.tool_servers
        ],
        limits=manifest_pb2.RunLimits(
            max_steps=limits.max_steps,
            max_tokens=limits.max_tokens,
            deadline=None if limits.deadline is None else duration(limits.deadline),
            max_depth=limits.max_depth,
            slots=limits.slots,
        ),
        surfaces=manifest_pb2.Surfaces(
            verbs=surfaces.verbs,
            messages=surfaces.messages,
            events=surfaces.events,
            queue=surfaces.queue,
            subscriptions=surfaces.subscriptions,
            metrics_port=surfaces.metrics_port,
            metrics_version=surfaces.metrics_version,
            exit_codes_version=surfaces.exit_codes_version,
            pause_holds_runs=surfaces.pause_holds_runs,
        ),
    )


def manifest_from_pb(message: manifest_pb2.Manifest) -> Manifest:
    """What an agent says of itself, of whatever version; see `manifest.readable`."""
    at, limits, surfaces = message.placement, message.limits, message.surfaces
    return Manifest(
        contract_version=message.contract_version,
        implementation=message.implementation,
        implementation_version=message.implementation_version,
        mode=message.mode,
        placement=Placement(at.namespace, at.agent, at.pod, at.pod_uid, at.node),
        model=message.model,
        tool_servers=tuple(ToolServer(each.name, tuple(each.tags)) for each in message.tool_servers),
        limits=Limits(
            limits.max_steps,
            limits.max_tokens,
            limits.deadline.ToTimedelta() if limits.HasField("deadline") else None,
            limits.max_depth,
            limits.slots,
        ),
        surfaces=Surfaces(
            tuple(surfaces.verbs),
            surfaces.messages,
            surfaces.events,
            surfaces.queue,
            tuple(surfaces.subscriptions),
            surfaces.metrics_port,
            surfaces.metrics_version,
            surfaces.exit_codes_version,
            surfaces.pause_holds_runs,
        ),
    )


# --- The condition ---------------------------------------------------------------------------


def condition_to_pb(condition: Condition) -> pb.GetStatusResponse:
    """What an agent is doing; its runs are without results."""
    return pb.GetStatusResponse(
        ready=condition.ready,
        not_ready_reason=condition.not_ready_reason,
        paused=condition.paused,
        lame_duck=condition.lame_duck,
        draining=condition.draining,
        uptime=duration(condition.uptime),
        runs=[run_to_pb(run, with_result=False) for run in condition.runs],
        free_slots=condition.free_slots,
        ended_runs=dict(condition.ended_runs),
        usage=usage_to_pb(condition.usage),
        pending_events=condition.pending_events,
    )


def condition_from_pb(message: pb.GetStatusResponse) -> Condition:
    """What an agent is doing. ValueError as for runs."""
    return Condition(
        ready=message.ready,
        not_ready_reason=message.not_ready_reason,
        paused=message.paused,
        lame_duck=message.lame_duck,
        draining=message.draining,
        uptime=message.uptime.ToTimedelta(),
        runs=tuple(run_from_pb(run) for run in message.runs),
        free_slots=message.free_slots,
        ended_runs=dict(message.ended_runs),
        usage=usage_from_pb(message.usage),
        pending_events=message.pending_events,
    )
