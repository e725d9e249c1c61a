"""What goes over the wire comes back as it was, and a newer minor version is understood."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.agent.v1 import run_pb2
from libs.contract import wire
from libs.contract.agent import Condition
from libs.contract.events import Event
from libs.contract.manifest import Limits, Manifest, Placement, Surfaces, ToolServer
from libs.contract.run import Run, State, Trigger, Usage, state_of
from libs.contract.statuses import Status

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COUNT = st.integers(0, 2**31 - 1)
SPAN = st.timedeltas(timedelta(0), timedelta(days=400))
USAGE = st.builds(Usage, COUNT, COUNT, COUNT, COUNT)


@st.composite
def runs(draw):
    run = draw(
        st.builds(
            Run,
            id=TEXT,
            trigger=st.sampled_from(Trigger),
            state=st.sampled_from([State.WORKING, State.PAUSED]),
            error=TEXT,
            result=TEXT,
            context_id=TEXT,
            usage=USAGE,
            age=SPAN,
            activity=TEXT,
            subject=TEXT,
        )
    )
    status = draw(st.none() | st.sampled_from(Status))
    return run if status is None else replace(run, status=status, state=state_of(status), took=draw(SPAN))


MANIFESTS = st.builds(
    Manifest,
    TEXT,
    TEXT,
    TEXT,
    st.builds(Placement, TEXT, TEXT, TEXT, TEXT, TEXT),
    TEXT,
    st.lists(st.builds(ToolServer, TEXT, st.lists(TEXT, max_size=3).map(tuple)), max_size=3).map(tuple),
    st.builds(Limits, COUNT, COUNT, st.none() | SPAN, COUNT, COUNT),
    st.builds(
        Surfaces,
        st.lists(TEXT, max_size=3).map(tuple),
        st.booleans(),
        st.booleans(),
        TEXT,
        st.lists(TEXT, max_size=3).map(tuple),
        COUNT,
        TEXT,
        TEXT,
        st.booleans(),
    ),
    TEXT,
)
CONDITIONS = st.builds(
    Condition,
    st.booleans(),
    TEXT,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    SPAN,
    st.lists(runs().map(lambda run: replace(run, result="")), max_size=2).map(tuple),
    COUNT,
    st.dictionaries(TEXT, COUNT, max_size=3),
    USAGE,
    COUNT,
)


@given(runs())
def test_runs_come_back_as_they_were(run):
    assert wire.run_from_pb(wire.run_to_pb(run)) == run
    assert wire.run_from_pb(wire.run_to_pb(run, with_result=False)) == replace(run, result="")


@given(MANIFESTS)
def test_manifests_come_back_as_they_were(manifest):
    assert wire.manifest_from_pb(wire.manifest_to_pb(manifest)) == manifest


@given(CONDITIONS)
def test_conditions_come_back_as_they_were(condition):
    assert wire.condition_from_pb(wire.condition_to_pb(condition)) == condition


@given(st.builds(Event, COUNT, SPAN, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=3)))
def test_events_come_back_as_they_were(event):
    assert wire.event_from_pb(wire.event_to_pb(event)) == event


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (run_pb2.RUN_STATE_COMPLETED, Status.COMPLETED),
        (run_pb2.RUN_STATE_FAILED, Status.FAILED),
        (run_pb2.RUN_STATE_REFUSED, Status.REFUSED),
        (run_pb2.RUN_STATE_CANCELED, Status.CANCELLED),
        (run_pb2.RUN_STATE_WORKING, None),
    ],
)
def test_a_word_of_a_newer_version_counts_as_its_state(state, status):
    message = run_pb2.Run(id="r", trigger=run_pb2.TRIGGER_ONCE, state=state, status="word_of_1_7")
    assert wire.run_from_pb(message).status is status


@pytest.mark.parametrize(
    "message",
    [
        run_pb2.Run(trigger=run_pb2.TRIGGER_ONCE),
        run_pb2.Run(state=run_pb2.RUN_STATE_WORKING),
        run_pb2.Run(trigger=99, state=run_pb2.RUN_STATE_WORKING),  # type: ignore[arg-type]
        run_pb2.Run(trigger=run_pb2.TRIGGER_ONCE, state=99),  # type: ignore[arg-type]
    ],
)
def test_states_and_triggers_are_closed(message):
    with pytest.raises(ValueError, match="is no"):
        wire.run_from_pb(message)


def test_every_state_and_trigger_has_a_number():
    names = {f"RUN_STATE_{state.name}" for state in State} | {"RUN_STATE_UNSPECIFIED"}
    assert set(run_pb2.RunState.keys()) == names
    names = {f"TRIGGER_{trigger.name}" for trigger in Trigger} | {"TRIGGER_UNSPECIFIED"}
    assert set(run_pb2.Trigger.keys()) == names


def test_text_that_utf_8_cannot_say_is_sent_all_the_same():
    run = Run("r", Trigger.ITEM, result="half \ud800", error="\udfff", activity="\ud800", subject="\ud800")
    message = wire.run_to_pb(run)
    assert (message.result, message.error) == ("half ?", "?")


def test_a_long_error_is_cut_between_characters():
    message = wire.run_to_pb(Run("r", Trigger.ITEM, error="x" + "é" * 5000))
    assert message.error == "x" + "é" * ((wire.MAX_ERROR_BYTES - 1) // 2)
