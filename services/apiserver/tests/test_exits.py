"""When an agent's process has ended, and how."""

from __future__ import annotations

import anyio
import pytest

from libs.cluster import Object
from libs.cluster.kinds import POD as PODS
from services.apiserver.exits import Exits, following
from services.apiserver.pods import Exit, Pod, exit_of, find, is_as_found
from services.apiserver.verbs import Kind, Target

from .world import BEGAN, World

POD = Pod("demo", "writer", "writer-0", "uid-0", "Running", "10.0.0.1", False, BEGAN)
LATER = "2026-01-02T00:00:00Z"


def pod_with(*containers: Object, phase: str = "Running") -> Object:
    return {
        "metadata": {"name": POD.name, "namespace": POD.namespace, "uid": POD.uid},
        "status": {"phase": phase, "containerStatuses": list(containers)},
    }


def ended(code: int, began: str = BEGAN) -> Object:
    return {"terminated": {"exitCode": code, "startedAt": began}}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"name": "agent", "state": {"running": {"startedAt": BEGAN}}, "lastState": {}}, None),
        ({"name": "agent", "state": ended(0), "lastState": {}}, Exit(0)),
        ({"name": "agent", "state": {"waiting": {}}, "lastState": ended(3)}, Exit(3)),
        ({"name": "agent", "state": {"running": {"startedAt": LATER}}, "lastState": ended(0)}, Exit(0)),
        ({"name": "agent", "state": {"running": {"startedAt": BEGAN}}, "lastState": ended(1, LATER)}, None),
        ({"name": "sidecar", "state": ended(0), "lastState": {}}, None),
    ],
)
def test_only_the_end_of_the_process_that_was_asked_counts(container: Object, expected: Exit | None):
    assert exit_of(POD, pod_with(container)) == expected


def test_a_process_is_as_it_was_found_in_the_same_pod_with_the_same_beginning():
    def now(began: str = BEGAN, uid: str = POD.uid) -> Object:
        pod = pod_with({"name": "agent", "state": {"running": {"startedAt": began}}})
        return {**pod, "metadata": {**pod["metadata"], "uid": uid}}

    assert [is_as_found(POD, each) for each in (now(), now(LATER), now(uid="uid-1"))] == [True, False, False]
    assert not is_as_found(POD, pod_with({"name": "agent", "state": ended(0)}))


async def test_a_pod_that_goes_without_a_word_ends_the_wait_with_nothing_known():
    exits = Exits([POD])
    running = pod_with({"name": "agent", "state": {"running": {"startedAt": BEGAN}}})
    exits.seen(None, running)
    exits.seen(running, None)
    with anyio.fail_after(5):
        assert await exits.of(POD) is None


async def test_an_end_that_was_seen_outlives_the_pod():
    exits = Exits([POD])
    over = pod_with({"name": "agent", "state": ended(0)}, phase="Succeeded")
    exits.seen(None, over)
    exits.seen(over, None)
    assert await exits.of(POD) == Exit(0)


async def test_a_pod_that_is_gone_before_it_is_followed_ends_the_wait(world: World):
    pod = await world.pod(await world.agent(), "writer")
    target = Target(Kind.AGENT, "demo", "writer")
    found = await find(world.cluster, target)
    await world.cluster.delete(PODS, "demo", pod["metadata"]["name"])
    ends_at = anyio.current_time() + 30
    async with following(world.cluster, target, found, ends_at) as exits:
        with anyio.fail_after(20):
            assert await exits.of(found[0]) is None
