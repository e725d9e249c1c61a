"""agentd's words in ours."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contract.events import Ring
from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.errors import PreconditionError
from libs.identity import Principal
from services.bridge.events import told_of
from services.bridge.foreign import Task
from services.bridge.manifest import Known, manifest_of
from services.bridge.runs import CUT_AT, Runs, outcome
from services.bridge.turns import Gate, Turns
from services.bridge.work import composed

ME = Principal.parse("spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-1")
KNOWN = Known(ME, "", 4, 3, (), 9090)
BODY = {
    "contract_version": "1.0",
    "agent_version": "1.4.0",
    "mode": "reactive",
    "model": None,
    "identity": {"node": "n-1"},
    "mcp_servers": [{"name": "search", "tags": ["egress"]}, {"name": "plain"}],
    "limits": {"max_steps": 7, "max_tokens": 900, "deadline_secs": 60},
    "surfaces": {"operator_tools": ["a2a.Pause", "a2a.Drain", "a2a.New"], "a2a": {"version": "1.0"}},
}


def test_what_is_there_is_taken_over():
    manifest = manifest_of(BODY, KNOWN)
    assert manifest.implementation_version == "1.4.0"
    assert manifest.mode == "reactive"
    assert manifest.placement.node == "n-1"
    assert [(each.name, each.tags) for each in manifest.tool_servers] == [
        ("search", ("egress",)),
        ("plain", ()),
    ]
    assert (manifest.limits.max_steps, manifest.limits.max_tokens) == (7, 900)
    assert manifest.limits.deadline == timedelta(seconds=60)
    assert manifest.surfaces.verbs == ("Drain", "Pause")
    assert manifest.surfaces.messages


def test_what_is_absent_is_not_there():
    manifest = manifest_of({"contract_version": "1.7", "surfaces": {"a2a": False}}, KNOWN)
    assert manifest.surfaces.verbs == ()
    assert not manifest.surfaces.messages
    assert manifest.tool_servers == ()
    assert manifest.limits.deadline is None


def test_with_a_queue_it_claims_and_a_pause_holds():
    surfaces = manifest_of(BODY, replace(KNOWN, queue="demo/worker")).surfaces
    assert surfaces.queue == "demo/worker"
    assert surfaces.pause_holds_runs


@pytest.mark.parametrize("version", ["2.0", "", "0.9", "10.0"])
def test_another_major_version_is_refused(version):
    with pytest.raises(PreconditionError):
        manifest_of(BODY | {"contract_version": version}, KNOWN)


@pytest.mark.parametrize(
    ("task", "reason", "is_draining", "status"),
    [
        (Task("1", "COMPLETED", "yes"), None, False, Status.COMPLETED),
        (Task("1", "COMPLETED", "yes"), "enough", True, Status.COMPLETED),
        (Task("1", "COMPLETED", "x" * CUT_AT), None, False, Status.TOO_LARGE),
        (Task("1", "COMPLETED", "x" * (CUT_AT + 1)), None, False, Status.COMPLETED),
        (Task("1", "REJECTED"), None, False, Status.REFUSED),
        (Task("1", "CANCELED"), "enough", False, Status.CANCELLED),
        (Task("1", "CANCELED"), "enough", True, Status.CANCELLED),
        (Task("1", "CANCELED"), None, True, Status.DRAINED),
        (Task("1", "FAILED", reason="exhausted_tokens"), None, False, Status.EXHAUSTED_TOKENS),
        (Task("1", "FAILED", reason="completed"), None, False, Status.FAILED),
        (Task("1", "FAILED", reason="stalled"), None, False, Status.FAILED),
        (Task("1", "FAILED"), None, False, Status.FAILED),
    ],
)
def test_how_a_run_ended(task, reason, is_draining, status):
    entry = Runs().begin("r-1", Trigger.MESSAGE, "text")
    entry.cancel_reason = reason
    assert outcome(task, entry, is_draining=is_draining)[0] is status


@pytest.mark.parametrize("instruction", ["Do.", " \n"])
def test_the_input_is_fenced_by_what_its_author_cannot_know(instruction):
    turns = Turns(Ring())
    fence, other = turns.admit(Gate()), turns.admit(Gate())
    text = composed(instruction, "input-1\nforget that", fence)
    assert text.endswith(f"{fence}\ninput-1\nforget that\n{fence}")
    assert text.startswith(instruction.strip())
    assert fence != other


def test_events_are_told_without_content():
    told = told_of({"event": "tool.result", "tool": "search", "is_error": True, "text": "secret", "seq": 4})
    assert told is not None
    assert (told.name, told.fields) == ("tool.failed", {"tool": "search"})
    assert told_of({"event": "subagent.spawn"}) is None
