"""Every single thing that makes a pod an agent's."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest

from libs.cluster import Bearer
from libs.errors import UnavailableError
from services.operator.identity import attest
from services.operator.identity.attest import Lineage, Rules, UnattestedError

from .conftest import named, template

MADE = "2026-01-01T00:00:00Z"
LATER = datetime(2026, 1, 2, tzinfo=UTC)
BEARER = Bearer("system:serviceaccount:demo:robot", pod="worker-1", pod_uid="pod-uid")


OTHERS = {
    "nodeName": "n", "tolerations": [{"key": "node.kubernetes.io/not-ready"}], "priority": 0,
    "imagePullSecrets": [{"name": "s"}], "preemptionPolicy": "PreemptLowerPriority", "schedulerName": "s",
}  # fmt: skip
"""What schedulers, kubelets and admission plugins write into pods."""


def whole():
    """A template as the API server has it."""
    made = template("worker")
    made["spec"] |= {"serviceAccountName": "robot", "automountServiceAccountToken": False, "volumes": VOLUMES}
    made["spec"]["containers"][0] |= {"env": [{"name": "A", "value": "a"}], "volumeMounts": [MOUNT]}
    return made


VOLUMES = [{"name": "t", "emptyDir": {}}]
MOUNT = {"name": "t", "mountPath": "/t"}


def right():
    """A pod, its Deployment and its fleet, as they should be."""
    pod = named(
        "v1", "Pod", "demo", "worker-1",
        metadata={"uid": "pod-uid", "labels": {"agentctl.dev/agent": "worker", "more": "is fine"}},
        spec={**whole()["spec"], **OTHERS},
        status={"phase": "Running"},
    )  # fmt: skip
    deployment = named(
        "apps/v1", "Deployment", "demo", "worker",
        metadata={"uid": "deployment-uid", "creationTimestamp": MADE},
        spec={"selector": {"matchLabels": {"agentctl.dev/agent": "worker"}}, "template": whole()},
    )  # fmt: skip
    record = {"kind": "Deployment", "name": "worker", "uid": "deployment-uid"}
    fleet = named(
        "agentctl.dev/v1alpha1", "AgentFleet", "demo", "worker",
        metadata={"uid": "fleet-uid"}, status={"workloads": [record]},
    )  # fmt: skip
    return {"pod": pod, "deployment": deployment, "fleet": fleet}


def lineage(things):
    return Lineage(things["pod"], [things["deployment"], things["fleet"]])


def put(things, path, value):
    *way, last = path.split(".")
    place = things
    for step in way:
        place = place[int(step)] if step.isdecimal() else place[step]
    place[last] = value


def test_all_as_it_should_be_is_an_agent():
    grant = attest.agent(BEARER, lineage(right()), Rules(), LATER)
    assert grant.path == "/ns/demo/agent/worker/pod/worker-1/pod-uid"
    assert grant.lifetime == timedelta(hours=1)
    assert grant.dns_names == ()
    assert attest.as_templated(lineage(right()))


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("pod.metadata.uid", "another", "bound to"),
        ("pod.metadata.name", "another", "bound to"),
        ("pod.spec.serviceAccountName", "another", "bound to"),
        ("pod.metadata.deletionTimestamp", MADE, "has ended"),
        ("pod.status.phase", "Succeeded", "has ended"),
        ("pod.status.phase", "Failed", "has ended"),
        ("pod.metadata.labels", {}, "Deployment selects"),
        ("pod.metadata.labels", {"agentctl.dev/agent": "boss"}, "Deployment selects"),
        ("deployment.spec.selector", {"matchExpressions": []}, "Deployment selects"),
        ("deployment.spec.template.metadata.labels.tier", "gold", "workload's template"),
        ("deployment.kind", "DaemonSet", "owners"),
        ("deployment.metadata.name", "boss", "Agent or AgentFleet has"),
        ("deployment.metadata.uid", "another", "on record"),
        ("fleet.kind", "ModelPool", "Agent or AgentFleet has"),
        ("fleet.kind", "Agent", None),
        ("fleet.status", {}, "on record"),
        ("fleet.status.workloads.0.kind", "StatefulSet", "on record"),
    ],
)
def test_each_thing_that_is_wrong_is_enough(path, value, why):
    things = deepcopy(right())
    put(things, path, value)
    if why is None:
        attest.agent(BEARER, lineage(things), Rules(), LATER)
        return
    with pytest.raises(UnattestedError) as refused:
        attest.agent(BEARER, lineage(things), Rules(), LATER)
    assert why in refused.value.why
    assert str(refused.value) == "this token's pod is not an agent's pod", "says nothing of what exists"


@pytest.mark.parametrize(
    ("seconds_left", "is_agent"), [(86_400, True), (1, True), (0, True), (-60, True), (-61, False)]
)
def test_a_pod_that_drains_is_an_agent_until_its_grace_is_over(seconds_left, is_agent):
    things = right()
    deadline = LATER + timedelta(seconds=seconds_left)
    things["pod"]["metadata"]["deletionTimestamp"] = f"{deadline:%Y-%m-%dT%H:%M:%SZ}"
    if is_agent:
        assert attest.agent(BEARER, lineage(things), Rules(), LATER).lifetime == timedelta(hours=1)
        things["pod"]["status"]["phase"] = "Failed"
    with pytest.raises(UnattestedError, match="not an agent's pod"):
        attest.agent(BEARER, lineage(things), Rules(), LATER)


def test_the_system_namespace_has_no_agents():
    with pytest.raises(UnattestedError) as refused:
        attest.agent(BEARER, lineage(right()), Rules(system_namespace="demo"), LATER)
    assert "system namespace" in refused.value.why


@pytest.mark.parametrize("owners", [[], ["deployment"], ["fleet"], ["deployment", "deployment", "fleet"]])
def test_a_chain_is_whole_and_of_a_known_shape(owners):
    things = right()
    found = Lineage(things["pod"], [things[each] for each in owners])
    with pytest.raises(UnattestedError):
        attest.agent(BEARER, found, Rules(), LATER)


def test_an_agent_has_no_coordinator():
    things = deepcopy(right())
    put(things, "deployment.metadata.name", "worker-coordinator")
    put(things, "fleet.status.workloads.0.name", "worker-coordinator")
    assert "/agent/worker-coordinator/" in attest.agent(BEARER, lineage(things), Rules(), LATER).path
    put(things, "fleet.kind", "Agent")
    with pytest.raises(UnattestedError):
        attest.agent(BEARER, lineage(things), Rules(), LATER)


def test_a_young_workload_may_still_be_recorded():
    things = deepcopy(right())
    put(things, "fleet.status", {})
    with pytest.raises(UnavailableError, match="try again"):
        attest.agent(BEARER, lineage(things), Rules(), datetime(2026, 1, 1, 0, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pod.spec.containers.0.image", "evil"),
        ("pod.spec.containers.0.command", ["sh"]),
        ("pod.spec.containers.0.args", ["-c", "env"]),
        ("pod.spec.containers.0.name", "other"),
        ("pod.spec.containers.0.workingDir", "/evil"),
        ("pod.spec.containers.0.env", [{"name": "A", "value": "a"}, {"name": "LD_PRELOAD", "value": "/t/x"}]),
        ("pod.spec.containers.0.env", [{"name": "A", "value": "b"}]),
        ("pod.spec.containers.0.env", []),
        ("pod.spec.containers.0.envFrom", [{"configMapRef": {"name": "evil"}}]),
        ("pod.spec.containers.0.volumeMounts", [MOUNT, {"name": "t", "mountPath": "/usr/bin"}]),
        ("pod.spec.containers.0.volumeMounts", [{**MOUNT, "subPath": "x"}]),
        ("pod.spec.containers.0.volumeDevices", [{"name": "d", "devicePath": "/dev/d"}]),
        ("pod.spec.containers.0.lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}),
        ("pod.spec.containers.0.livenessProbe", {"exec": {"command": ["sh"]}}),
        ("pod.spec.containers.0.readinessProbe", {"exec": {"command": ["sh"]}}),
        ("pod.spec.containers.0.startupProbe", {"exec": {"command": ["sh"]}}),
        ("pod.spec.containers.0.securityContext", {"privileged": True}),
        ("pod.spec.containers.0.ports", [{"containerPort": 1, "hostPort": 1}]),
        ("pod.spec.containers", [*whole()["spec"]["containers"], {"name": "more", "image": "evil"}]),
        ("pod.spec.initContainers", [{"name": "first", "image": "evil"}]),
        (
            "pod.spec.ephemeralContainers",
            [{"name": "debug", "image": "evil", "targetContainerName": "agent"}],
        ),
        ("pod.spec.volumes", [{"name": "t", "hostPath": {"path": "/"}}]),
        ("pod.spec.volumes", [*VOLUMES, {"name": "kube-api-access-x", "projected": {}}]),
        ("pod.spec.automountServiceAccountToken", True),
        ("pod.spec.serviceAccountName", "another"),
        ("pod.spec.securityContext", {"runAsUser": 0}),
        ("pod.spec.runtimeClassName", "evil"),
        ("pod.spec.hostNetwork", True),
        ("pod.spec.hostPID", True),
        ("pod.spec.hostIPC", True),
        ("pod.spec.shareProcessNamespace", True),
        ("pod.spec.hostAliases", [{"ip": "10.0.0.1", "hostnames": ["operator"]}]),
        ("pod.spec.dnsConfig", {"nameservers": ["10.0.0.1"]}),
    ],
)
def test_what_the_container_runs_is_what_the_template_says(path, value):
    things = deepcopy(right())
    put(things, path, value)
    assert not attest.as_templated(lineage(things))


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "CronJob"])
def test_the_template_of_every_kind_of_workload_counts(kind):
    things = deepcopy(right())
    spec = things["deployment"]["spec"]
    put(things, "deployment.kind", kind)
    if kind == "CronJob":
        put(things, "deployment.spec", {"jobTemplate": {"spec": spec}})
    assert attest.as_templated(lineage(things))
    spec["template"]["spec"]["hostPID"] = True
    assert not attest.as_templated(lineage(things))
