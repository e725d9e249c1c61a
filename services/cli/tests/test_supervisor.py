from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import pytest

from ..processes import Record
from ..supervisor import Child, DiedError, Launch, answers, free_port, is_free

SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE


class Stage:
    """Starts children from scripts and ends what is left of them."""

    def __init__(self, folder):
        self.folder = folder
        self.record = Record(folder / "children.json")
        self.said: list[tuple[str, str]] = []
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.launches = 0
        self.children: list[Child] = []

    def say(self, name, event):
        self.said.append((name, event))
        self.events.put_nowait(event)

    def child(self, script, *, grace=5.0, ports=None):
        def launch():
            self.launches += 1
            port = ports.pop(0) if ports else free_port()
            command = [sys.executable, "-c", script, str(port)]
            return Launch(command, {}, [port], f"http://127.0.0.1:{port}/readyz", f"uid-{self.launches}")

        child = Child("child", launch, log=self.folder / "child.log", grace=grace)
        self.children.append(child)
        return child


@pytest.fixture
async def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    hurry = asyncio.Event()
    hurry.set()
    for child in stage.children:
        await child.stop(stage.record, stage.say, hurry)


async def test_a_child_is_ready_when_it_answers_and_stops_when_told(stage):
    child = stage.child(SERVE)
    await child.start(stage.record)
    assert await answers(child.launched.probe)
    assert not await answers(child.launched.probe.replace("readyz", "other"))
    await child.stop(stage.record, stage.say, asyncio.Event())
    assert not await answers(child.launched.probe)
    assert "child" not in (stage.folder / "children.json").read_text()


async def test_a_child_that_ends_before_it_is_ready_leaves_its_last_words(stage):
    with pytest.raises(DiedError, match=r"exit code 3.*\n  it is broken"):
        await stage.child("import sys; print('it is broken'); sys.exit(3)").start(stage.record)
    assert stage.launches == 1


async def test_a_port_that_was_taken_is_chosen_anew(stage):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert not is_free(taken)
        child = stage.child(SERVE, ports=[taken])
        await child.start(stage.record)
    assert stage.launches == 2
    assert await answers(child.launched.probe)


async def test_a_child_that_is_killed_is_started_again(stage):
    child = stage.child(SERVE)
    await child.start(stage.record)
    gone: asyncio.Queue[str] = asyncio.Queue()
    keeping = asyncio.create_task(
        child.keep(stage.record, stage.say, lambda launch: gone.put_nowait(launch.uid))
    )
    os.kill(child.pid, signal.SIGKILL)
    assert await gone.get() == "uid-1"
    async with asyncio.timeout(20):
        while "ready again" not in await stage.events.get():
            pass
    assert await answers(child.launched.probe)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert "SIGKILL" in stage.said[0][1]


async def test_a_child_with_a_bad_configuration_is_not_started_again(stage):
    child = stage.child(
        "import sys, threading; threading.Timer(0.5, __import__('os')._exit, [2]).start()\n" + SERVE
    )
    await child.start(stage.record)
    with pytest.raises(DiedError, match="exit code 2"):
        await child.keep(stage.record, stage.say, lambda _: None)
    assert stage.launches == 1


async def test_the_end_of_a_guarded_child_is_an_error(stage):
    child = stage.child(SERVE)
    await child.start(stage.record)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(DiedError, match="SIGKILL"):
        await child.guard(stage.record)


@pytest.mark.parametrize("in_a_hurry", [False, True])
async def test_a_child_that_does_not_stop_is_killed(stage, in_a_hurry):
    child = stage.child(DEAF, grace=60 if in_a_hurry else 0.2)
    await child.start(stage.record)
    hurry = asyncio.Event()
    if in_a_hurry:
        hurry.set()
    await child.stop(stage.record, stage.say, hurry)
    assert stage.said == [("child", "did not stop in time and was killed")]
    assert not await answers(child.launched.probe)
