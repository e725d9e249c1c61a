"""What is reported, for each state of what is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from libs.cluster.kinds import CRON_JOB, DEPLOYMENT, JOB, SCALED_OBJECT, STATEFUL_SET, kind_of
from libs.cluster.local.schema import findings
from libs.resources.crds import schema_for
from services.operator.plan import Plan, Problem, Shards
from services.operator.status import Event, Observed, events, status

from .manifests import agent, fleet, one_of, plan_of, pod_of, pool

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """An object and its children; each look is a pass of the operator, a minute after the one before."""

    def __init__(self, what, *others, **more):
        self.thing, self.others, self.more = what, others, more  # more: of the plan's Context
        self.children, self.pods, self.problems = {}, [], ()
        self.now = NOW
        self.events: tuple[Event, ...] = ()

    def apply(self, **said):
        """The plan's objects are there, with this status."""
        for manifest in plan_of(self.thing, *self.others, **self.more).objects:
            kind, name = kind_of(manifest["apiVersion"], manifest["kind"]), manifest["metadata"]["name"]
            metadata = {**manifest["metadata"], "uid": f"uid-{kind.name}-{name}", "generation": 1}
            self.children[kind, name] = {
                **manifest,
                "metadata": metadata,
                "status": {"observedGeneration": 1} | said,
            }
        return self

    def respec(self, **spec):
        self.thing["spec"] |= spec
        self.thing["metadata"]["generation"] += 1
        return self

    def child(self, kind, name):
        return self.children[kind, name]

    def look(self):
        plan = (
            Plan(problems=self.problems) if self.problems else plan_of(self.thing, *self.others, **self.more)
        )
        around = {name: self.more[name] for name in ("shards", "awaits_certificate") if name in self.more}
        new = status(self.thing, Observed(self.now, plan, self.children, self.pods, **around))
        self.events = events(self.thing.get("status") or {}, new, self.thing)
        schema = schema_for(kind_of(self.thing["apiVersion"], self.thing["kind"]))
        assert findings(new, None, schema["properties"]["status"]) == []
        self.thing["status"] = new
        self.now += timedelta(minutes=1)
        return new

    def condition(self, kind):
        return next(each for each in self.look()["conditions"] if each["type"] == kind)

    def ready(self):
        found = self.condition("Ready")
        return found["status"], found["reason"], found["message"]


def deployment(replicas=1, updated=None, available=None):
    updated = replicas if updated is None else updated
    available = replicas if available is None else available
    return {
        "replicas": replicas, "updatedReplicas": updated,
        "availableReplicas": available, "readyReplicas": available,
    }  # fmt: skip


def singleton():
    return World(agent(mode="loop", loop={"interval": "5m"}))


def pod(owner, name="p", code=None, waiting=None, created="2026-01-01T00:00:00Z"):
    state = {"terminated": {"exitCode": code}} if code is not None else {"waiting": {"reason": waiting}}
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": "w", "uid": owner["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    labels = {"agentctl.dev/agent": "a"}
    metadata = {"name": name, "labels": labels, "ownerReferences": [reference], "creationTimestamp": created}
    return {"metadata": metadata, "status": {"containerStatuses": [{"name": "agent", "state": state}]}}


def job_status(how="", start="2026-01-01T12:00:00Z", end="2026-01-01T12:05:00Z", **more):
    said = {"startTime": start, **more}
    if how:
        said["conditions"] = [{"type": how, "status": "True", "lastTransitionTime": end, "reason": "Why"}]
    if how == "Complete":
        said["completionTime"] = end
    return said


# Deployments


def test_ready_when_the_updated_pods_are_available():
    assert singleton().apply(**deployment()).ready() == ("True", "Ready", "1 of 1 ready")


@pytest.mark.parametrize(
    "said",
    [
        deployment(1, updated=0),  # the old pod is ready, the new one is not there yet
        deployment(1, available=0),
        deployment(2, updated=1, available=1),  # one of them is old: which one is available?
        {},
    ],
)
def test_not_ready_while_a_change_is_rolled_out(said):
    assert singleton().apply(**said).ready()[:2] == ("False", "Progressing")


def test_not_ready_until_the_workloads_controller_has_seen_the_change():
    world = singleton().apply(**deployment())
    world.child(DEPLOYMENT, "a")["metadata"]["generation"] = 2
    assert world.ready()[:2] == ("False", "Progressing")


def test_not_ready_while_the_workload_is_of_the_spec_before():
    world = singleton().apply(**deployment())
    assert world.ready()[0] == "True"
    assert world.respec(instruction="Other.").ready()[:2] == ("False", "Progressing")
    assert world.apply(**deployment()).ready()[0] == "True"


def test_not_ready_without_a_workload():
    assert singleton().ready() == ("False", "Progressing", "the workload is not there yet")


def test_not_ready_for_the_reason_that_the_pods_say():
    stalled = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    world = singleton().apply(**deployment(available=0), conditions=stalled)
    world.pods = [pod(world.child(DEPLOYMENT, "a"), waiting="ErrImagePull")]
    expected = ("False", "ImagePullBackOff", "0 of 1 ready, 1 up to date; pod p: ImagePullBackOff")
    assert world.ready() == expected
    world.pods = [pod(world.child(DEPLOYMENT, "a"), waiting="ImagePullBackOff")]
    assert world.ready() == expected  # the two take turns, and the status does not follow


def test_stalled_if_no_pod_says_why():
    stalled = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    assert singleton().apply(**deployment(available=0), conditions=stalled).ready()[1] == "Stalled"


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("ImagePullBackOff", "Back-off pulling, 20 s", "ImagePullBackOff"),
        ("InvalidImageName", "no name: X", "InvalidImageName: no name: X"),
        (
            "CreateContainerConfigError",
            'secret "s" not found',
            'CreateContainerConfigError: secret "s" not found',
        ),
        ("CreateContainerError", "try 7", "CreateContainerError"),
        ("CrashLoopBackOff", "back-off 40s", "CrashLoopBackOff"),
        ("Unsupported", "a volume of this kind", "Unsupported: a volume of this kind"),
        ("ImageEntrypointUnknown", "say its command", "ImageEntrypointUnknown: say its command"),
    ],
)
def test_a_pod_that_waits_for_good_is_no_roll_out(reason, message, said):
    world = singleton().apply(**deployment(available=0))
    world.pods = [pod(world.child(DEPLOYMENT, "a"), waiting=reason)]
    world.pods[0]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = message
    assert world.ready() == ("False", reason, f"0 of 1 ready, 1 up to date; pod p: {said}")
    assert world.look()["phase"] == "Failing"
    run = once().apply(**job_status())
    run.pods = [pod(run.child(JOB, "a"), waiting=reason)]
    assert run.ready()[:2] == ("False", reason)


def test_a_pod_that_crashes_again_and_again_is_the_same_between_its_tries():
    world = singleton().apply(**deployment(available=0))
    ended = {"terminated": {"exitCode": 2}}
    states: list[dict[str, Any]] = [{"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}, ended]
    for state in states:
        container = {"name": "agent", "state": state, "lastState": ended, "restartCount": 2}
        world.pods = [pod(world.child(DEPLOYMENT, "a"), waiting="")]
        world.pods[0]["status"] = {"containerStatuses": [container]}
        assert world.ready()[1] == "CrashLoopBackOff"
        assert world.ready()[2].endswith("pod p: CrashLoopBackOff: exit code 2 (terminal)")


def test_an_agent_that_ends_again_and_again_shows_its_exit_code():
    world = singleton().apply(**deployment(available=0))
    world.pods = [pod(world.child(DEPLOYMENT, "a"), code=2)]
    assert world.ready()[2].endswith("pod p: exit code 2 (terminal)")


def test_a_bridge_that_crashes_is_named():
    world = singleton().apply(**deployment(available=0))
    ended = {"terminated": {"exitCode": 2}}
    bridge = {"name": "bridge", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    world.pods = [pod(world.child(DEPLOYMENT, "a"), waiting="PodInitializing")]
    world.pods[0]["status"]["initContainerStatuses"] = [bridge]
    assert world.ready()[1] == "CrashLoopBackOff"
    assert world.ready()[2].endswith("pod p: bridge: CrashLoopBackOff: exit code 2 (terminal)")


def test_a_pod_that_may_not_be_shows_why():
    refused = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]
    assert "exceeded quota" in singleton().apply(**deployment(0), conditions=refused).ready()[2]


# Fleets


def test_a_fleet_shows_what_the_scale_subresource_needs():
    said = World(fleet(replicas=3)).apply(**deployment(3, available=2)).look()
    assert (said["replicas"], said["readyReplicas"], said["selector"]) == (3, 2, "agentctl.dev/agent=f")


def test_a_fleet_of_none_is_ready():
    world = World(fleet()).apply(**deployment(0))
    assert world.ready()[:2] == ("True", "ScaledToZero")
    assert (world.look()["replicas"], world.look()["readyReplicas"]) == (0, 0)
    world.apply(**deployment(1))
    assert world.ready()[1] == "Ready"


def test_a_fleet_is_not_ready_without_its_coordinator():
    world = World(fleet(replicas=1, coordinator={"template": {"image": "x"}})).apply(**deployment())
    assert world.ready()[0] == "True"
    world.child(DEPLOYMENT, "f-coordinator")["status"] |= deployment(1, available=0)
    assert world.ready()[:2] == ("False", "CoordinatorNotReady")
    assert {each["name"] for each in world.look()["workloads"]} == {"f", "f-coordinator"}


def scaled(replicas):
    """A fleet that is scaled by demand, and was scaled to so many."""
    world = World(fleet(), scales=True).apply(**deployment(replicas, available=min(replicas, 1)))
    world.child(DEPLOYMENT, "f")["spec"]["replicas"] = replicas
    return world


def test_a_fleet_that_is_scaled_by_demand_is_ready_when_one_agent_is():
    assert scaled(50).ready() == ("True", "Ready", "1 of 50 ready")
    assert scaled(0).ready()[:2] == ("True", "ScaledToZero")
    starting = scaled(1)
    starting.child(DEPLOYMENT, "f")["status"] |= deployment(1, available=0)
    assert starting.ready()[:2] == ("False", "Progressing")
    rolling = scaled(50)
    rolling.child(DEPLOYMENT, "f")["status"] |= deployment(50, updated=3)
    assert rolling.ready()[:2] == ("False", "Progressing")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"status": "True", "reason": "ScaledObjectReady"}, ("True", "ScaledByDemand")),
        ({"status": "Unknown", "reason": "ScaledObjectReady"}, ("False", "Progressing")),
        ({}, ("False", "Progressing")),
        ({"status": "False", "reason": "ScaledObjectCheckFailed"}, ("False", "ScaledObjectCheckFailed")),
        ({"status": "False", "reason": "it is so"}, ("False", "ScaledObjectNotReady")),
        ({"status": "False"}, ("False", "ScaledObjectNotReady")),
    ],
)
def test_a_fleet_says_why_its_scaled_object_is_not_ready(said, expected):
    world = scaled(1)
    world.child(SCALED_OBJECT, "f")["status"] = {"conditions": [{"type": "Ready", "message": "m", **said}]}
    found = world.condition("Scaled")
    assert (found["status"], found["reason"]) == expected
    assert (found["message"] == "m") == (expected[1] not in ("Progressing", "ScaledByDemand"))


def test_as_long_as_nobody_looked_at_its_scaled_object_a_fleet_is_not_scaled_and_that_is_no_warning():
    found = (world := scaled(0)).condition("Scaled")
    assert (found["status"], found["reason"]) == ("False", "Progressing")
    assert {event.type for event in world.events} == {"Normal"}


def held(replicas):
    world = scaled(replicas)
    world.more |= {"scales": False, "workers": world.child(DEPLOYMENT, "f")}
    return world.apply(**deployment(replicas))


def test_what_is_held_at_zero_is_not_ready_and_says_what_would_start_it():
    some, none = held(2), held(0)
    assert some.condition("Scaled")["message"] == (
        "nothing scales here any more: of its agents 2 stay until KEDA is back or spec.replicas is set"
    )
    said = "nothing scales here any more: no agent starts until KEDA is back or spec.replicas is set"
    assert none.condition("Scaled")["message"] == said
    assert none.ready() == ("False", "Held", said)


def test_agents_of_another_epoch_are_not_those_of_this_division():
    world = World(fleet(replicas=1, scaling={"mode": "shard"}), shards=Shards(1, 7)).apply(**deployment(1))
    worker = pod(world.child(STATEFUL_SET, "f"))
    worker["metadata"]["ownerReferences"][0]["name"] = "f"
    worker["spec"] = pod_of(one_of(plan_of(world.thing, shards=Shards(1, 5)), STATEFUL_SET))["spec"]
    world.pods = [worker]
    found = world.condition("Sharded")
    assert (found["status"], found["reason"]) == ("False", "Resharding")
    assert found["message"] == "the epoch is 7, 1 agents are of another one"
    worker["status"]["phase"] = "Succeeded"
    assert world.condition("Sharded")["status"] == "True"


def test_without_a_scaler_a_fleet_says_so_and_that_is_no_warning():
    world = World(fleet(scaling={"minReplicas": 2})).apply(**deployment(2))
    assert world.condition("Scaled")["reason"] == "NoScaler"
    assert {event.type for event in world.events} == {"Normal"}


def test_a_fleet_that_waits_for_kedas_certificate_says_so_unless_a_person_says_how_many():
    world = World(fleet(scaling={"minReplicas": 2}), scales=True, awaits_certificate=True)
    found = world.apply(**deployment(2)).condition("Scaled")
    assert (found["status"], found["reason"]) == ("False", "NoCertificate")
    assert {event.type for event in world.events} == {"Normal"}
    assert world.respec(replicas=3).condition("Scaled")["reason"] == "FixedByHand"


def test_a_fleet_of_shards_says_its_division_or_what_it_waits_for():
    spec = fleet(replicas=3, scaling={"mode": "shard"})
    world = World(spec, shards=Shards(3, 7)).apply(**deployment(3))
    assert world.condition("Sharded")["message"] == "3 shards, epoch 7"
    assert world.ready() == ("True", "Ready", "3 of 3 ready")
    assert world.look()["shards"] == {"count": 3, "epoch": 7}
    assert world.look()["workloads"][0]["kind"] == "StatefulSet"
    world.more["shards"] = None  # its workers stay
    assert (world.condition("Sharded")["reason"], world.ready()[0]) == ("ShardsUnknown", "True")
    world.more["shards"] = Shards(5, 8)
    del world.children[STATEFUL_SET, "f"]
    said = world.condition("Sharded")
    assert (said["status"], said["reason"]) == ("False", "Resharding")
    assert world.ready() == ("False", "Progressing", said["message"])


# Whose pods get the identity


def test_workloads_are_what_we_control_by_uid():
    world = singleton().apply(**deployment())
    assert world.look()["workloads"] == [{"kind": "Deployment", "name": "a", "uid": "uid-Deployment-a"}]
    world.child(DEPLOYMENT, "a")["metadata"]["ownerReferences"][0]["uid"] = "of an Agent a of before"
    assert "workloads" not in world.look()
    assert world.ready()[0] == "False"


# Runs


def once(**runs):
    return World(agent(runs=runs) if runs else agent())


def test_a_run_from_its_start_to_its_end():
    world = once().apply()
    assert world.ready()[:2] == ("False", "Pending")
    world.apply(**job_status())
    assert world.ready()[:2] == ("False", "Progressing")
    world.apply(**job_status(ready=1))
    assert world.ready()[:2] == ("True", "Running")
    assert world.look()["lastRun"] == {"name": "a", "startTime": "2026-01-01T12:00:00Z", "outcome": "Running"}
    said = world.apply(**job_status("Complete")).look()
    assert said["lastRun"] == {
        "name": "a", "startTime": "2026-01-01T12:00:00Z", "completionTime": "2026-01-01T12:05:00Z",
        "outcome": "Succeeded", "exitCode": 0, "intent": "complete",
    }  # fmt: skip
    assert (said["runs"], said["phase"]) == (1, "Succeeded")
    assert world.condition("Complete")["status"] == "True"
    assert world.look()["runs"] == 1


def test_a_failed_run_says_its_exit_code_and_what_it_asks():
    world = once().apply(**job_status("Failed"))
    job = world.child(JOB, "a")
    later = pod(job, "q", code=5, created="2026-01-01T00:01:00Z")
    world.pods = [
        later,
        pod(job, "p", code=4),
        pod({**job, "metadata": {"uid": "other"}}, "r", code=0),
    ]
    state, reason, message = world.ready()
    assert (state, reason) == ("False", "Failed")
    assert "exit code 5 (terminal)" in message
    assert (world.look()["lastRun"]["exitCode"], world.look()["phase"]) == (5, "Failed")
    world.pods = []  # gone, but it was seen
    assert world.look()["lastRun"]["exitCode"] == 5


REPORT = {
    "contract_version": "1.0", "run_id": "r", "agent": "a", "mode": "once", "status": "exhausted_tokens",
    "exit_code": 7, "intent": "policy", "error": "it has used 2000 of 2000 tokens", "duration_ms": 5,
    "usage": {"input_tokens": 1900, "output_tokens": 100, "steps": 4, "tool_calls": 2}, "has_result": False,
}  # fmt: skip


def reporting(owner, code, message, name="p", container="agent"):
    """A pod that ended, one of whose containers had last words."""
    made = pod(owner, name, code=code)
    status = made["status"]
    state = {"terminated": {"exitCode": code, "message": message}}
    if container == "agent":
        status["containerStatuses"][0]["state"] = state
    else:
        status["initContainerStatuses"] = [{"name": container, "state": state}]
    return made


@pytest.mark.parametrize("container", ["agent", "bridge"])
def test_a_run_has_the_reason_and_the_use_that_its_report_says(container):
    world = once().apply(**job_status("Failed"))
    world.pods = [reporting(world.child(JOB, "a"), 7, json.dumps(REPORT), container=container)]
    run = world.look()["lastRun"]
    assert (run["exitCode"], run["intent"]) == (7, "policy")
    assert (run["reason"], run["message"]) == ("exhausted_tokens", "it has used 2000 of 2000 tokens")
    assert (run["inputTokens"], run["outputTokens"], run["steps"]) == (1900, 100, 4)
    assert world.ready() == (
        "False",
        "Failed",
        "run a failed with exit code 7 (policy): exhausted_tokens: it has used 2000 of 2000 tokens (Why); "
        "a new runs.trigger runs it again",
    )
    world.pods = []  # gone, but it was seen
    assert world.look()["lastRun"] == run


def test_the_use_of_a_run_that_succeeded_is_known_too():
    world = once().apply(**job_status("Complete"))
    job = world.child(JOB, "a")
    done = REPORT | {"status": "completed", "exit_code": 0, "error": ""}
    world.pods = [reporting(job, 1, json.dumps(REPORT), "q"), reporting(job, 0, json.dumps(done), "p")]
    run = world.look()["lastRun"]
    assert (run["reason"], run["steps"], "message" in run) == ("completed", 4, False)
    assert world.ready() == ("True", "Succeeded", "run a ended with exit code 0")
    world.pods = []
    assert world.look()["lastRun"] == run


def test_a_run_that_was_drained_says_so():
    world = once().apply(**job_status("Complete"))
    drained = REPORT | {"status": "drained", "exit_code": 0, "error": "the node goes"}
    world.pods = [reporting(world.child(JOB, "a"), 0, json.dumps(drained))]
    assert world.ready()[2] == "run a ended with exit code 0: drained: the node goes"


@pytest.mark.parametrize(
    "text",
    [
        "", "no report", "{", "[]", "null", '"text"', "{}", "[" * 4096, "\ud800",
        json.dumps(REPORT)[:-1] + ', "more": ' + "[" * 1500 + "]" * 1500 + "}", "x" * 20_000,
        json.dumps(REPORT)[:-1], json.dumps(REPORT) + " and more", f'its probe failed: {json.dumps(REPORT)}',
    ],
)  # fmt: skip
def test_what_is_no_report_counts_as_none(text):
    world = once().apply(**job_status("Failed"))
    world.pods = [reporting(world.child(JOB, "a"), 7, text)]
    assert world.look()["lastRun"].keys() == {
        "name", "startTime", "completionTime", "outcome", "exitCode", "intent",
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"contract_version": "2.0"},
        {"contract_version": 1.0},
        {"status": "A b"},
        {"status": "x" * 64},
        {"status": 7},
        {"error": 7},
        {"usage": 5},
        {"usage": {"steps": -1}},
        {"usage": {"input_tokens": 2**60}},
    ],
)
def test_a_report_with_a_field_that_is_none_counts_as_none(wrong):
    world = once().apply(**job_status("Failed"))
    world.pods = [reporting(world.child(JOB, "a"), 7, json.dumps(REPORT | wrong))]
    assert not {"reason", "message", "steps"} & world.look()["lastRun"].keys()


def test_a_report_of_a_later_minor_version_is_read():
    world = once().apply(**job_status("Failed"))
    later = REPORT | {"contract_version": "1.7", "more": {"a": 1}, "status": "bored"}
    world.pods = [reporting(world.child(JOB, "a"), 3, json.dumps(later))]
    assert world.look()["lastRun"]["reason"] == "bored"


def test_the_words_of_a_report_are_one_line_of_bounded_length():
    world = once().apply(**job_status("Failed"))
    wild = REPORT | {"error": "two\nlines \u001b[31m\u0000 " + "long " * 500}
    world.pods = [reporting(world.child(JOB, "a"), 7, json.dumps(wild))]
    said = world.look()["lastRun"]["message"]
    assert said.startswith("two lines [31m long")
    assert said.isprintable()
    assert len(said) == 1024


def test_a_run_is_one_event_even_if_its_report_is_read_later():
    world = once().apply(**job_status(ready=1))
    world.look()
    world.apply(**job_status("Failed"))
    world.look()
    assert [event.reason for event in world.events] == ["RunFailed"]
    world.pods = [reporting(world.child(JOB, "a"), 7, json.dumps(REPORT))]
    assert world.look()["lastRun"]["reason"] == "exhausted_tokens"
    assert world.events == ()


def test_the_event_of_a_run_says_why_it_ended():
    world = once().apply(**job_status("Failed"))
    world.pods = [reporting(world.child(JOB, "a"), 7, json.dumps(REPORT))]
    world.look()
    (event,) = [event for event in world.events if event.reason == "RunFailed"]
    assert event.message.endswith("exit code 7 (policy): exhausted_tokens: it has used 2000 of 2000 tokens")


def test_a_run_without_a_pod_says_what_its_job_says():
    message = once().apply(**job_status("Failed")).ready()[2]
    assert "exit code" not in message
    assert "Why" in message


def test_a_job_that_expired_leaves_the_record_of_its_run():
    world = once(keepFor="1h").apply(**job_status("Complete"))
    before = world.look()
    world.children = {}
    after = world.look()
    assert after["lastRun"] == before["lastRun"]
    assert (after["runs"], world.ready()[1]) == (1, "Succeeded")


def test_a_new_spec_forgets_the_run_of_the_old_one():
    """Else an operator that is killed between deleting the old Job and making the new one never makes it."""
    world = once().apply(**job_status("Complete"))
    world.look()
    assert "lastRun" not in world.respec(instruction="Other.").look()
    assert world.ready()[:2] == ("False", "Pending")
    said = world.apply(**job_status("Failed", start="2026-01-01T13:00:00Z")).look()
    assert (said["runs"], said["lastRun"]["outcome"]) == (2, "Failed")


def test_a_refused_spec_does_not_inherit_the_run_of_the_one_before():
    world = once().apply(**job_status("Complete"))
    world.look()
    world.problems = (Problem("UnknownModelPool", "there is no ModelPool"),)
    assert "lastRun" not in world.respec(model={"pool": "models"}).look()


def test_a_run_whose_job_expired_unseen_counts_as_failed():
    world = once(keepFor="1s").apply(**job_status(ready=1))
    world.look()
    world.children = {}
    said = world.look()
    assert (said["lastRun"]["outcome"], said["runs"]) == ("Failed", 1)
    assert "before its end was seen" in world.ready()[2]
    assert world.look()["runs"] == 1


def nightly(**schedule):
    return World(agent(mode="schedule", schedule={"cron": "0 3 * * *"} | schedule)).apply()


def add_run(world, number, how, code=None):
    clock = world.child(CRON_JOB, "a")
    reference = {
        "apiVersion": "batch/v1", "kind": "CronJob", "name": "a",
        "uid": clock["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    day = f"2026-01-{number:02}T03:"
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"a-{number}", "uid": f"job-{number}", "ownerReferences": [reference]},
        "status": job_status(how, f"{day}00:00Z", f"{day}10:00Z"),
    }
    world.children[JOB, f"a-{number}"] = job
    if code is not None:
        world.pods = [pod(job, code=code)]


def test_a_schedule_shows_its_newest_run_and_counts_them():
    world = nightly()
    assert world.ready()[1:] == ("Scheduled", "it runs at 0 3 * * * Etc/UTC")
    assert "lastRun" not in world.look()
    add_run(world, 1, "Complete")
    add_run(world, 2, "Complete")
    assert (world.look()["runs"], world.look()["lastRun"]["name"]) == (2, "a-2")
    add_run(world, 3, "")
    assert (world.look()["runs"], world.look()["lastRun"]["outcome"]) == (2, "Running")
    del world.children[JOB, "a-1"]  # the CronJob keeps three
    add_run(world, 3, "Failed", code=7)
    assert (world.look()["runs"], world.look()["lastRun"]["intent"]) == (3, "policy")
    state, reason, message = world.ready()
    assert (state, reason, "exit code 7 (policy)" in message) == ("False", "RunFailed", True)
    add_run(world, 4, "Complete")
    assert (world.ready()[:2], world.look()["runs"]) == (("True", "Scheduled"), 4)
    for number in (2, 3, 4):
        del world.children[JOB, f"a-{number}"]
    assert (world.look()["lastRun"]["name"], world.look()["runs"]) == ("a-4", 4)


def test_a_suspended_schedule_says_so():
    assert nightly(suspend=True).ready()[:2] == ("True", "Suspended")


# Conditions and events


def test_a_pass_without_a_change_changes_nothing_and_tells_nothing():
    world = singleton().apply(**deployment())
    first = world.look()
    assert world.events
    assert world.look() == first
    assert world.events == ()


def test_the_time_of_a_condition_is_that_of_its_last_change_of_status():
    world = singleton().apply(**deployment(available=0))
    first = world.condition("Ready")
    world.respec(instruction="Other.").apply(**deployment(0))
    second = world.condition("Ready")
    assert first["lastTransitionTime"] == second["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    assert (first["observedGeneration"], second["observedGeneration"]) == (1, 2)
    world.apply(**deployment())
    assert world.condition("Ready")["lastTransitionTime"] == "2026-01-01T12:02:00Z"
    assert world.condition("Accepted")["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_what_is_refused_is_neither_accepted_nor_ready_though_its_pods_run():
    world = singleton().apply(**deployment())
    world.look()
    world.problems = (Problem("UnknownModelPool", "create it"), Problem("UnknownServerSet", "name another"))
    refused = world.respec(model={"pool": "x"}).condition("Accepted")
    assert (refused["status"], refused["reason"]) == ("False", "UnknownModelPool")
    assert refused["message"] == "create it; name another"
    assert [(event.type, event.reason) for event in world.events] == [("Warning", "UnknownModelPool")]
    assert world.ready()[:2] == ("False", "NotAccepted")
    assert world.look()["phase"] == "Rejected"
    assert world.look()["workloads"]
    world.problems = (Problem("UnknownModelPool", "create the other"),)
    world.look()
    assert [event.message for event in world.events] == ["create the other"]


def test_each_change_is_one_event():
    world = singleton().apply(**deployment(available=0))
    world.look()
    assert [(event.type, event.reason) for event in world.events] == [
        ("Normal", "Accepted"),
        ("Normal", "Progressing"),
    ]
    world.apply(**deployment())
    world.look()
    assert [(event.type, event.reason) for event in world.events] == [("Normal", "Ready")]


def test_the_end_of_a_run_is_one_event():
    world = once().apply(**job_status(ready=1))
    world.look()
    world.apply(**job_status("Failed"))
    world.look()
    assert [(event.type, event.reason) for event in world.events] == [("Warning", "RunFailed")]
    world.pods = [pod(world.child(JOB, "a"), code=5)]  # its exit code is learnt later: no second event
    assert world.look()["lastRun"]["exitCode"] == 5
    assert world.events == ()


def test_a_malformed_object_still_gets_a_status():
    world = singleton()
    world.thing["spec"]["mode"] = "sometimes"
    assert world.condition("Accepted")["reason"] == "RenderFailed"
    assert world.ready()[1] == "NotAccepted"


def test_a_pool_counts_its_users():
    said = status(pool(), Observed(NOW, users=2))
    assert (said["users"], said["conditions"][0]["type"]) == (2, "Accepted")
    assert status({**pool(), "status": said}, Observed(NOW + timedelta(hours=1), users=2)) == said
