"""kill -9 of the operator, at one point after another of a rollout, a resize and a replaced singleton.

The operator runs outside the cluster, so that it is back at once; what it makes runs inside. That it dies
between any two of its writes is tested in services/operator; here a real API server, real controllers and
real pods go on while it is dead. The last test kills the one in the pod, and the kubelet brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, DEPLOYMENT, JOB

from . import foreign
from .killing import kill, processes
from .kubectl import SYSTEM, Kubectl
from .operators import Operator, Post, operator
from .watching import Watching, accepted, watching

pytestmark = pytest.mark.cluster

Point = tuple[str, Callable[[], object]]


def told(pod: Object) -> str:
    """The instruction that the pod has."""
    [container] = pod["spec"]["containers"]
    return str(next(each["value"] for each in container["env"] if each["name"] == "AGENT_INSTRUCTION"))


def converged(seen: Watching, name: str, instruction: str, size: int) -> bool:
    """Exactly so many pods, all of the new template, all ready; and status says so."""
    fleet = seen.informers[AGENT_FLEET].get(seen.namespace, name)
    ready = (fleet or {}).get("status", {}).get("readyReplicas", 0)
    pods = seen.pods(name)
    return (
        len(pods) == len(seen.ready(name)) == ready == size
        and {told(pod) for pod in pods} == {instruction}
        and accepted(fleet)[0] == "True"
    )


async def killed_at(seen: Watching, victim: Operator, points: Sequence[Point]) -> None:
    """At each of the points in turn, and started again."""
    for name, reached in points:
        try:
            await seen.until(reached)
        except TimeoutError:
            pytest.fail(f"never came to: {name}")
        await victim.kill()
        await victim.start()


async def test_a_fleet_converges_whenever_the_operator_dies(post: Post) -> None:
    name = "workers"
    async with watching(post.kubeconfig, post.namespace) as seen, operator(post) as victim:

        def points(instruction: str, size: int) -> list[Point]:
            def rendered() -> bool:
                if (deployment := seen.get(DEPLOYMENT, name)) is None:
                    return False
                spec = deployment["spec"]
                return told(spec["template"]) == instruction and spec["replicas"] == size

            def new() -> list[Object]:
                return [pod for pod in seen.pods(name) if told(pod) == instruction]

            def new_ready() -> list[Object]:
                return [pod for pod in seen.ready(name) if told(pod) == instruction]

            return [
                ("declared", lambda: True),
                ("rendered", rendered),
                ("a pod made", new),
                ("accepted", lambda: accepted(seen.get(AGENT_FLEET, name))[0] == "True"),
                ("a pod ready", new_ready),
                ("all pods ready", lambda: len(new_ready()) >= size),
            ]

        # made; rolled; grown; shrunk; rolled and grown at once
        for instruction, size in (("one", 3), ("two", 3), ("two", 5), ("two", 2), ("three", 4)):
            await seen.cluster.apply(foreign.fleet(post.namespace, name, instruction, size), "test")
            await killed_at(seen, victim, points(instruction, size))
            await seen.until(lambda: converged(seen, name, instruction, size))  # noqa: B023
        await seen.until(lambda: seen.orphans() == [])


async def test_a_singleton_never_runs_twice_whenever_the_operator_dies(post: Post) -> None:
    name = "alone"
    async with watching(post.kubeconfig, post.namespace) as seen, operator(post) as victim:

        def ready(instruction: str) -> list[Object]:
            return [pod for pod in seen.ready(name) if told(pod) == instruction]

        async def change(instruction: str, **spec: str) -> None:
            before = {pod["metadata"]["uid"] for pod in seen.pods(name)}
            await seen.cluster.apply(foreign.agent(post.namespace, name, instruction, **spec), "test")
            points: list[Point] = [
                ("declared", lambda: True),
                (
                    "the last pod is to go",
                    lambda: not before & {p["metadata"]["uid"] for p in seen.pods(name)},
                ),
                ("a pod made", lambda: [pod for pod in seen.pods(name) if told(pod) == instruction]),
                ("ready", lambda: ready(instruction)),
            ]
            await killed_at(seen, victim, points)
            await seen.until(lambda: accepted(seen.get(AGENT, name))[0] == "True" and ready(instruction))

        await change("one")
        await change("two")  # the Deployment's own rollout
        await change("three", mode="once")  # a Job takes its place
        assert seen.get(DEPLOYMENT, name) is None
        await change("four", mode="once")  # a Job cannot be changed: another one
        await change("five")
        assert seen.get(JOB, name) is None
        assert seen.most_running[name] == 1
        await seen.until(lambda: seen.orphans() == [])


async def test_a_fleet_deleted_while_no_operator_runs_goes_with_everything(post: Post) -> None:
    async with watching(post.kubeconfig, post.namespace) as seen, operator(post) as victim:
        await seen.cluster.apply(foreign.fleet(post.namespace, "workers", "work", 2), "test")
        await seen.cluster.apply(foreign.agent(post.namespace, "alone", "work"), "test")
        await seen.until(lambda: converged(seen, "workers", "work", 2) and seen.ready("alone"))
        await victim.kill()
        await seen.cluster.delete(AGENT_FLEET, post.namespace, "workers")
        await seen.cluster.delete(AGENT, post.namespace, "alone")
        await seen.until(lambda: seen.owned() == [])
        assert seen.get(AGENT_FLEET, "workers") is None
        assert seen.get(AGENT, "alone") is None


@pytest.mark.usefixtures("single")
async def test_the_kubelet_brings_back_a_killed_operator_and_the_rollout_goes_on(
    kubectl: Kubectl, namespace: str
) -> None:
    if not processes(plane(kubectl), "operator"):
        pytest.skip("the node's processes are not on this machine")
    async with watching(kubectl.kubeconfig, namespace) as seen:
        await seen.cluster.apply(foreign.fleet(namespace, "workers", "one", 2), "test")
        await seen.until(lambda: converged(seen, "workers", "one", 2))
        await seen.cluster.apply(foreign.fleet(namespace, "workers", "two", 4), "test")
        kill_operator(kubectl, times=1)
        await seen.until(lambda: converged(seen, "workers", "two", 4))
        await seen.cluster.apply(foreign.fleet(namespace, "workers", "three", 3), "test")
        kill_operator(kubectl, times=2)  # the kubelet waits ten seconds this time
        await seen.until(lambda: converged(seen, "workers", "three", 3))
        await seen.until(lambda: seen.orphans() == [])


def kill_operator(kubectl: Kubectl, times: int) -> None:
    """SIGKILL to its container. Returns when it is back."""
    kill(plane(kubectl), "operator")
    pod = f"pod/{plane(kubectl)['metadata']['name']}"
    operator = '{.status.containerStatuses[?(@.name=="operator")]'
    kubectl.wait(f"jsonpath={operator}.restartCount}}={times}", pod, SYSTEM)
    kubectl.wait(f"jsonpath={operator}.ready}}=true", pod, SYSTEM)


def plane(kubectl: Kubectl) -> Object:
    """The pod of the overlay single."""
    [pod] = kubectl.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=plane")
    return dict(pod)
