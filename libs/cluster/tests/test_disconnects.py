"""A real API server behind a line that breaks."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
import yaml

from libs.cluster.informer import Informer
from libs.cluster.kinds import CONFIG_MAP, NAMESPACE
from libs.cluster.kubernetes import connect
from libs.cluster.lease import Election, NotLeadingError, Terms
from libs.errors import UnavailableError

from .proxy import proxy

pytestmark = pytest.mark.cluster

PATIENCE = 60  # seconds


@pytest.fixture
def kubeconfig():
    path = os.environ.get("AGENTCTL_TEST_KUBECONFIG")
    if not path:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    return Path(path)


@pytest.fixture
async def direct(kubeconfig):
    async with connect(kubeconfig) as cluster:
        yield cluster


@pytest.fixture
async def namespace(direct):
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "conf-"}}
    name = (await direct.create(thing))["metadata"]["name"]
    yield name
    await direct.delete(NAMESPACE, "", name)


@pytest.fixture
async def line(kubeconfig):
    document = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(document["clusters"][0]["cluster"]["server"])
    async with proxy(server.hostname, server.port) as between:
        yield between


@pytest.fixture
async def cluster(kubeconfig, line, tmp_path):
    """The same server through the line; requests end within three seconds."""
    document = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(document["clusters"][0]["cluster"]["server"])
    address = server._replace(netloc=f"127.0.0.1:{line.port}").geturl()
    document["clusters"][0]["cluster"] |= {"server": address, "tls-server-name": server.hostname}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    async with connect(path, deadline=3) as cluster:
        yield cluster


@asynccontextmanager
async def beside(run, *arguments):
    async with anyio.create_task_group() as group:
        group.start_soon(run, *arguments)
        yield
        group.cancel_scope.cancel()


def config(namespace, name, value=""):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": {"w": "1"}},
        "data": {"value": value},
    }


class Heard:
    """A subscriber that can be waited for."""

    def __init__(self):
        self.changes = []
        self._more = anyio.Event()

    def __call__(self, old, new):
        value = (old and old["data"]["value"], new and new["data"]["value"])
        self.changes.append(((new or old)["metadata"]["name"], *value))
        self._more.set()

    async def until(self, count):
        with anyio.fail_after(PATIENCE):
            while len(self.changes) < count:
                await self._more.wait()
                self._more = anyio.Event()


async def test_informer_misses_nothing_while_the_line_is_cut(direct, cluster, line, namespace):
    informer = Informer(cluster, CONFIG_MAP, namespace, "w=1")
    informer.subscribe(heard := Heard())
    for name in ("stays", "goes"):
        await direct.create(config(namespace, name, "1"))
    async with beside(informer.run):
        await heard.until(2)
        for round in range(3):
            line.refuses = True
            line.cut()
            with pytest.raises(UnavailableError):
                await cluster.version()
            await direct.apply(config(namespace, "stays", f"away {round}"), "us")
            line.refuses = False
            await heard.until(3 + 2 * round)
            await direct.apply(config(namespace, "stays", f"back {round}"), "us")
            await heard.until(4 + 2 * round)
        line.cut()
        await direct.delete(CONFIG_MAP, namespace, "goes")
        await heard.until(9)
    assert heard.changes[2:] == [
        ("stays", "1", "away 0"),
        ("stays", "away 0", "back 0"),
        ("stays", "back 0", "away 1"),
        ("stays", "away 1", "back 1"),
        ("stays", "back 1", "away 2"),
        ("stays", "away 2", "back 2"),
        ("goes", "1", None),
    ]


async def test_requests_on_a_silent_line_end_and_work_again_after(cluster, line):
    assert await cluster.version()
    line.stall()
    with anyio.fail_after(PATIENCE), pytest.raises(UnavailableError):
        await cluster.version()
    line.flow()
    assert await cluster.version()


async def test_leader_whose_line_is_silent_stops_before_another_leads(direct, cluster, line, namespace):
    """By real time and a real lease of three seconds, of which two are trusted."""
    terms = Terms(duration=3, trust=2.0, period=0.25)
    cut_off = Election(cluster, namespace, "lead", "cut off", terms=terms)
    other = Election(direct, namespace, "lead", "other", terms=terms)
    took_over, started, stopped = anyio.Event(), anyio.Event(), anyio.Event()

    async def lead_first():
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async def lead_next():
        assert stopped.is_set()
        with pytest.raises(NotLeadingError):
            cut_off.check()
        other.check()
        took_over.set()

    async with beside(cut_off.run, lead_first):
        with anyio.fail_after(PATIENCE):
            await started.wait()
            cut_off.check()
            async with beside(other.run, lead_next):
                line.stall()
                await took_over.wait()
        line.flow()
