"""Fleets that the real KEDA scales, as the operator tells it: from nothing, under bursts, through outages."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from libs.cluster import Object

from . import keda
from .demand import CALLS, KEDA, metric
from .killing import kill, processes
from .kubectl import SYSTEM, Kubectl
from .place import Place
from .tenants import NAME, Tenant, tenant
from .world import is_ready

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("scaled")]

_BURST = 20
_USUAL_DRAIN = 35
"""Seconds after which an agent is gone that was given no time of its own."""
_WRITES, _PASSES = "agentctl_operator_writes_total", "agentctl_operator_reconcile_seconds_count"


@pytest.fixture
def crew(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Tenant]:
    """One that sleeps."""
    with tenant(kubectl, namespace, tmp_path) as made:
        made.says("Scaled", "True", "ScaledByDemand")
        made.has(0)
        yield made


def gates(count: int, prefix: str = "gate") -> list[str]:
    """So many names."""
    return [f"{prefix}-{number}" for number in range(count)]


def opened(crew: Tenant, names: list[str]) -> None:
    for name in names:
        crew.world.open(name)


def answered(crew: Tenant, times: int, code: str = "OK") -> None:
    """Returns when KEDA was told so many times more how much there is to do."""

    def told() -> float:
        return metric(crew.kubectl, CALLS, method="GetMetrics", code=code)

    before = told()
    crew.world.until(lambda: told() >= before + times, 180)


# --- by demand


def test_a_fleet_sleeps_until_there_is_an_item_and_sleeps_again(crew: Tenant) -> None:
    crew.succeeded(crew.quick("one"))
    crew.has(0)
    assert crew.trace.replicas == [0, 1, 0]


def test_a_burst_is_done_by_many_who_go_without_hurting_an_item(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    with tenant(kubectl, namespace, tmp_path, maxReplicas=_BURST) as crew:
        crew.has(0)
        held = gates(_BURST)
        long = crew.begin(*held)
        quick = crew.quick(*(f"quick-{number}" for number in range(20 * _BURST)))
        crew.has(_BURST, 300)
        opened(crew, held[3:])
        crew.succeeded([*long[3:], *quick], 300)
        crew.has(3, 300)  # seventeen have gone; whoever had one of the three long items gave it back
        assert max(crew.trace.replicas) == _BURST
        opened(crew, held[:3])
        crew.succeeded(long)
        crew.has(0)


def test_an_item_that_takes_longer_than_the_cooldown_keeps_its_agent(crew: Tenant) -> None:
    ids = held(crew, 1)
    answered(crew, 10)  # the HPA asks every 5 s, KEDA every 30 s; the cooldown is 5 s
    assert (crew.trace.replicas, crew.trace.ready) == ([1], [1])
    opened(crew, gates(1))
    [item] = crew.succeeded(ids)
    crew.has(0)
    assert len(crew.world.calls("gate-0")) == 1
    assert item.attempt == 1


def test_who_has_to_go_may_finish_within_the_drain(crew: Tenant, kubectl: Kubectl) -> None:
    patch = '{"spec": {"work": {"drain": "5m"}}}'
    kubectl("patch", "agentfleet", NAME, "-n", crew.namespace, "--type=merge", "-p", patch)
    ids = held(crew, 2)
    pods = [pod["metadata"]["name"] for pod in crew.world.pods(NAME)]
    kubectl("scale", f"agentfleet/{NAME}", "--replicas=0", "-n", crew.namespace)
    crew.has(0)  # as many are to stay
    started = time.monotonic()
    crew.world.until(lambda: time.monotonic() > started + _USUAL_DRAIN)
    opened(crew, gates(2))
    items = crew.succeeded(ids)
    assert {item.holder.split("/pod/")[1].split("/")[0] for item in items} == set(pods)
    assert [len(crew.world.calls(gate)) for gate in gates(2)] == [1, 1]


def test_at_rest_the_operator_does_nothing_whatever_keda_writes(crew: Tenant, kubectl: Kubectl) -> None:
    def done() -> list[float]:
        return [metric(kubectl, name, "operator") for name in (_WRITES, _PASSES)]

    def revision() -> str:
        return str(crew.world.get("scaledobject", NAME)["metadata"]["resourceVersion"])

    def rests(asked: int) -> None:
        answered(crew, asked)
        writes, passes = done()
        answered(crew, asked)
        more = done()
        assert more[0] == writes
        assert more[1] <= passes + 1  # each object is looked at again every ten minutes

    rests(1)  # nobody is there; a poll every 30 s
    ids = held(crew, 1)
    before = revision()
    rests(8)
    assert revision() != before
    opened(crew, gates(1))
    crew.succeeded(ids)
    crew.has(0)


def test_another_tenants_fleet_of_the_same_name_sleeps_on(
    crew: Tenant, kubectl: Kubectl, elsewhere: str, tmp_path: Path
) -> None:
    with tenant(kubectl, elsewhere, tmp_path) as other:
        other.has(0)
        mine = crew.begin(*gates(2))
        crew.has(2)
        assert other.trace.replicas == [0]
        other.succeeded(other.quick("one"))
        other.has(0)
        assert other.trace.replicas == [0, 1, 0]
        assert crew.trace.replicas[-1] == 2
        opened(crew, gates(2))
        crew.succeeded(mine)


# --- outages


def held(crew: Tenant, size: int) -> list[str]:
    """Ids of as many items as agents, each of which has one; nothing of before is in the trace."""
    ids = crew.begin(*gates(size))
    crew.has(size)
    for gate in gates(size):
        crew.world.at(gate)
    crew.trace.forget()
    return ids


@contextmanager
def stopped(pod: Object, container: str) -> Iterator[None]:
    """A container's processes stand still. Skips the test if its node is not this machine."""
    with ExitStack() as stack:
        found = processes(pod, container)
        if not found:
            pytest.skip("the node's processes are not on this machine")
        for process in found:
            os.kill(process, signal.SIGSTOP)
            stack.callback(_go_on, process)
        yield


def _go_on(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def component(kubectl: Kubectl, name: str) -> Object:
    [pod] = kubectl.get("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/component={name}")
    return dict(pod)


def unknown(crew: Tenant, seconds: float = 0) -> None:
    """Returns when KEDA could not learn how much there is to do, and so long afterwards. It may not even find
    the scaler, which is not ready then."""
    crew.says("Scaled", "False", "TriggerError")
    started = time.monotonic()
    crew.world.until(lambda: time.monotonic() > started + seconds)


def test_replicas_hold_while_coordination_is_away(crew: Tenant, kubectl: Kubectl) -> None:
    ids = held(crew, 3)
    kubectl("scale", "deployment/coordination", "--replicas=0", "-n", SYSTEM)
    try:
        kubectl.wait("delete", f"pod/{component(kubectl, 'coordination')['metadata']['name']}", SYSTEM)
        unknown(crew, 45)  # the HPA asks every 5 s, KEDA every 30 s; the cooldown is 5 s
    finally:
        kubectl("scale", "deployment/coordination", "--replicas=1", "-n", SYSTEM)
        kubectl.wait("condition=Available", "deployment/coordination", SYSTEM)
    assert crew.trace.replicas == [3]
    opened(crew, gates(3))
    crew.finished(ids)
    crew.has(0)


def test_replicas_hold_while_coordination_stands_still(crew: Tenant, kubectl: Kubectl) -> None:
    held(crew, 3)
    with stopped(component(kubectl, "coordination"), "coordination"):
        unknown(crew)  # perhaps until the kubelet has it killed
    kubectl.wait("condition=Available", "deployment/coordination", SYSTEM)
    assert crew.trace.replicas == [3]
    opened(crew, gates(3))
    crew.has(0)


def test_replicas_hold_while_coordination_is_restarted(crew: Tenant, kubectl: Kubectl) -> None:
    ids = held(crew, 3)
    kubectl("rollout", "restart", "deployment/coordination", "-n", SYSTEM)
    kubectl("rollout", "status", "deployment/coordination", "-n", SYSTEM, "--timeout=120s", seconds=130)
    opened(crew, gates(3))
    crew.succeeded(ids)
    crew.has(0)
    assert crew.trace.replicas[0] == 3
    assert crew.trace.replicas[-1] == 0


def test_a_fleet_sleeps_on_while_coordination_is_away(crew: Tenant, kubectl: Kubectl) -> None:
    kubectl("scale", "deployment/coordination", "--replicas=0", "-n", SYSTEM)
    try:
        unknown(crew, 35)
    finally:
        kubectl("scale", "deployment/coordination", "--replicas=1", "-n", SYSTEM)
        kubectl.wait("condition=Available", "deployment/coordination", SYSTEM)
    crew.succeeded(crew.quick("one"))
    assert crew.trace.replicas[:2] == [0, 1]


# --- who says how many


def test_nothing_dips_when_a_person_says_how_many_and_then_leaves_it_to_demand(
    crew: Tenant, kubectl: Kubectl
) -> None:
    ids = held(crew, 3)
    kubectl("scale", f"agentfleet/{NAME}", "--replicas=4", "-n", crew.namespace)
    crew.says("Scaled", "True", "FixedByHand")
    crew.has(4)
    kubectl.wait("delete", f"scaledobject/{NAME}", crew.namespace)
    remove = '[{"op": "remove", "path": "/spec/replicas"}]'
    kubectl("patch", "agentfleet", NAME, "-n", crew.namespace, "--type=json", "-p", remove)
    crew.says("Scaled", "True", "ScaledByDemand")
    crew.has(3)
    assert crew.trace.replicas == [3, 4, 3]
    assert min(crew.trace.ready) == 3
    opened(crew, gates(3))
    crew.succeeded(ids)
    crew.has(0)


def test_nothing_dips_when_keda_goes_and_when_it_comes_back(crew: Tenant, kubectl: Kubectl) -> None:
    place = Place.of(dict(os.environ))
    if kubectl.kubeconfig.resolve() != place.kubeconfig.resolve():
        pytest.skip("KEDA is not ours to remove: this is not the node of integration.cluster")
    ids = held(crew, 3)
    keda.remove(place)
    try:
        crew.says("Scaled", "False", "Held")
        assert crew.trace.replicas == [3]
    finally:
        keda.install(place)
        kubectl("apply", "-k", "k8s/overlays/dev-keda", seconds=120)
    crew.says("Scaled", "True", "ScaledByDemand")
    more = crew.begin(*gates(1, "more"))
    crew.has(4)  # KEDA is at work again
    assert crew.trace.replicas == [3, 4]
    assert min(crew.trace.ready) == 3
    opened(crew, [*gates(3), *gates(1, "more")])
    crew.succeeded([*ids, *more])
    crew.has(0)


def test_a_renewed_certificate_of_keda_leaves_the_push_at_work(crew: Tenant, kubectl: Kubectl) -> None:
    def streams() -> float:
        return metric(kubectl, "agentctl_scaler_streams", method="StreamIsActive")

    crew.world.until(streams)
    secret = ("secret", "agentctl-scaler-client", "-n", KEDA)
    before = kubectl.get(*secret)["data"]["tls.crt"]
    kubectl("delete", *secret)
    kubectl.wait("create", "/".join(secret[:2]), KEDA)
    crew.world.until(lambda: kubectl.get(*secret).get("data", {}).get("tls.crt", before) != before)
    for _ in range(2):  # the first makes KEDA look for its certificate, the second ends what it had before
        kubectl("rollout", "restart", "deployment/scaler", "-n", SYSTEM)
        kubectl("rollout", "status", "deployment/scaler", "-n", SYSTEM, "--timeout=120s", seconds=130)
        crew.world.until(streams)
    crew.succeeded(crew.quick("one"))
    assert crew.trace.replicas[:2] == [0, 1]


# --- shards


def fnv1a(key: str) -> int:
    """64 bits."""
    value = 0xCBF29CE484222325
    for byte in key.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def resized(crew: Tenant, shards: int) -> None:
    """Returns when its queue has so many, and each its agent."""
    crew.kubectl("scale", f"agentfleet/{NAME}", f"--replicas={shards}", "-n", crew.namespace)

    def is_so() -> bool:
        said = crew.world.get("agentfleet", NAME).get("status", {}).get("shards", {})
        return bool(said.get("count") == shards)

    crew.world.until(is_so, 180)
    crew.has(shards)


def test_shards_are_resized_under_load_and_an_agent_killed_meanwhile(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    with tenant(kubectl, namespace, tmp_path, "statefulset", mode="shard", minReplicas=1) as crew:
        resized(crew, 3)
        names, ids = list[str](), list[str]()

        def load(phase: str) -> None:
            more = [f"{phase}-{number}" for number in range(100)]
            names.extend(more)
            ids.extend(crew.quick(*more, keyed=True))

        load("three")
        resized(crew, 5)
        load("five")
        victim = next(pod for pod in crew.world.pods(NAME) if is_ready(pod))
        kill(victim, "agent")
        load("killed")
        resized(crew, 2)
        load("two")
        crew.finished(ids)
        calls = {name: len(crew.world.calls(name)) for name in names}
        assert min(calls.values()) == 1  # nothing lost
        assert sum(count > 1 for count in calls.values()) <= 1  # what the victim had, and no more
        last = crew.quick("last", keyed=True)
        [item] = crew.finished(last)
        assert item.holder.split("/pod/")[1].split("/")[0] == f"{NAME}-{fnv1a('last') % 2}"
