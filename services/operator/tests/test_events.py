"""Events are written in order, each once, and never in the way."""

from __future__ import annotations

from typing import Any

import anyio

from libs.cluster import Object
from libs.errors import UnavailableError
from services.operator.events import Recorder

ABOUT = {
    "apiVersion": "agentctl.dev/v1alpha1",
    "kind": "Agent",
    "metadata": {"name": "x", "namespace": "n", "uid": "u"},
}


async def _written(notes: list[str], fails: frozenset[str] = frozenset()) -> list[Object]:
    written: list[Any] = []
    over = anyio.Event()

    async def write(event: Object) -> Object:
        if event["note"] == "last":
            over.set()
        if event["note"] in fails:
            raise UnavailableError("down")
        written.append(event)
        return event

    recorder = Recorder(write, "operator-0")
    for note in [*notes, "last"]:
        recorder.record(ABOUT, "Created", "Apply", note)
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        with anyio.fail_after(10):
            await over.wait()
        group.cancel_scope.cancel()
    return written


async def test_they_come_in_order_under_names_of_their_own():
    events = await _written(["a", "b", "c"])
    assert [event["note"] for event in events] == ["a", "b", "c", "last"]
    assert len({event["metadata"]["name"] for event in events}) == 4
    assert events[0]["regarding"]["uid"] == "u"


async def test_one_that_cannot_be_written_is_lost_alone():
    events = await _written(["a", "b"], frozenset({"a"}))
    assert [event["note"] for event in events] == ["b", "last"]


async def test_when_too_many_wait_the_oldest_go_and_notes_have_the_length_that_the_api_takes():
    events = await _written([*(f"n{n}" for n in range(5500)), "x" * 5000])
    assert len(events) == 5000
    assert events[-1]["note"] == "last"
    assert len(events[-2]["note"]) == 1024
