"""The output of a pod's containers."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from libs.cluster import Log
from libs.cluster.kinds import POD
from libs.cluster.local.logs import path_of
from libs.errors import InvalidError, NotFoundError

from .things import pod, thing


class Output:
    """Writes as the runner does."""

    def __init__(self, folder, uid):
        self.path = path_of(folder, uid, "agent")
        self.path.parent.mkdir(parents=True)
        self.path.touch()

    def write(self, text):
        with self.path.open("a") as file:
            file.write(text)

    def turn(self):
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        self.path.touch()


@pytest.fixture
async def worker(cluster):
    said = pod()
    said["spec"]["containers"].append({"name": "sidecar", "image": "agentctl"})
    return await cluster.create(said)


@pytest.fixture
async def output(cluster, worker):
    return Output(cluster.folder, worker["metadata"]["uid"])


async def read(cluster, **options):
    with anyio.fail_after(10):
        return b"".join([piece async for piece in cluster.logs(Log("default", "worker", **options))]).decode()


async def report(cluster, phase):
    said = thing(POD, "worker", status={"phase": phase})
    await cluster.apply(said, "runner", subresource="status")


async def test_a_log_is_read_to_its_end(cluster, output):
    output.write("one\ntwo\n")
    assert await read(cluster) == "one\ntwo\n"


@pytest.mark.parametrize(
    ("tail", "text"),
    [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (3, "one\ntwo\nthree\n"), (9, "one\ntwo\nthree\n")],
)
async def test_the_tail_of_a_log(cluster, output, tail, text):
    output.write("one\ntwo\nthree\n")
    assert await read(cluster, tail=tail) == text


async def test_the_tail_of_a_long_log(cluster, output):
    lines = [f"{number} {'x' * 1000}\n" for number in range(500)]
    output.write("".join(lines) + "the last")
    assert await read(cluster, tail=200) == "".join(lines[-199:]) + "the last"


async def test_what_was_before_a_restart(cluster, output):
    output.write("before\n")
    output.turn()
    output.write("after\n")
    assert await read(cluster, previous=True) == "before\n"
    assert await read(cluster) == "after\n"


async def test_a_container_that_never_ran_has_nothing_to_say(cluster, worker):
    assert await read(cluster) == ""
    assert await read(cluster, previous=True) == ""


async def test_what_is_not_there_is_refused(cluster, worker):
    with pytest.raises(InvalidError, match="agent, sidecar"):
        await read(cluster, container="other")
    with pytest.raises(NotFoundError):
        await anext(cluster.logs(Log("default", "another")))


@pytest.fixture
async def following(cluster, output):
    """Waits until a follower has read that much, from its start."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    seen: list[bytes] = []

    async def follow():
        async for piece in cluster.logs(Log("default", "worker", follow=True)):
            pieces.put_nowait(piece)

    async def until(text):
        with anyio.fail_after(10):
            while b"".join(seen).decode() != text:
                seen.append(await pieces.get())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        with anyio.fail_after(20):
            yield until
        # the group ends only when the follower does


async def test_a_follower_reads_what_comes_until_the_pod_has_ended(cluster, output, following):
    output.write("one\n")
    await following("one\n")
    output.turn()
    output.write("two\n")
    await following("one\ntwo\n")
    output.write("three\n")
    await report(cluster, "Succeeded")
    await following("one\ntwo\nthree\n")


async def test_a_follower_goes_on_after_the_log_was_cut(cluster, output, following):
    output.write("a long line that was there before\n")
    await following("a long line that was there before\n")
    output.path.write_text("short\n")
    await following("a long line that was there before\nshort\n")
    await cluster.delete(POD, "default", "worker")


async def test_a_follower_ends_when_the_pod_is_gone(cluster, output, following):
    await cluster.delete(POD, "default", "worker")
    await following("")
