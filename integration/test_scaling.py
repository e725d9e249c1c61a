"""Fleets of `agentctl up` that are scaled: by what there is to do, by hand, and in shards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from agentctl.coordination.v1 import work_pb2
from libs.identity import Identity, Principal
from libs.state import ADMINISTRATOR, State
from libs.work import Work, connect

from .machine import EXAMPLES, Machine, until
from .modes.home import NAMESPACE, Home
from .scripted import scripted

BURST = (EXAMPLES / "from-zero.yaml").read_text().replace("cooldown: 30s", "cooldown: 2s")
TEMPLATE = {"instruction": "Say something.", "limits": {"maxTokens": 10000, "deadline": "10m"}}
SUCCEEDED = work_pb2.WORK_STATE_SUCCEEDED


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A plane, in memory, whose stand-in for a model takes its time."""
    with tempfile.TemporaryDirectory(prefix="agentctl-scaling-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            with scripted() as model:
                machine.ready(machine.up("--store", "memory", PROVIDER_LATENCY="300ms"))
                yield Home(machine, model)
        finally:
            machine.close()


def replicas(home: Home, name: str, namespace: str = NAMESPACE) -> int:
    """As many as are asked for."""
    return int(home.machine.json("get", f"deploy/{name}", "-n", namespace)["spec"].get("replicas", 1))


def condition(home: Home, name: str, type: str) -> tuple[str, str]:
    """Status and reason of a fleet's condition; ("", "") while it has none."""
    conditions = home.status(name, "AgentFleet").get("conditions", ())
    return next(((each["status"], each["reason"]) for each in conditions if each["type"] == type), ("", ""))


def is_done(home: Home, ids: Sequence[str]) -> bool:
    """Whether all these items are, each by its first attempt."""
    items = home.items(ids)
    assert max(item.attempt for item in items) <= 1
    return {item.state for item in items} == {SUCCEEDED}


def test_a_fleet_comes_with_its_work_and_goes_after_it(home: Home) -> None:
    machine = home.machine
    machine.done("apply", "-f", "-", stdin=BURST)
    machine.done("wait", "fleet/burst", "-n", "demo")
    assert machine.agents() == []
    said = machine.done("work", "submit", "demo/burst", "-", "--wait", "-o", "json", stdin="One. Two.\n")
    assert json.loads(said.splitlines()[-1])["state"] == "WORK_STATE_SUCCEEDED"
    assert len(machine.agents()) == 1

    ids = home.submit("demo/burst", *(f"Line {number}. It goes on." for number in range(60)))
    until(lambda: len(machine.agents()) == 4, "there are no four agents")
    until(lambda: is_done(home, ids), "not all is done")
    items = home.items(ids)
    assert len({Principal.parse(item.holder).pod for item in items}) <= 4
    until(lambda: machine.agents() == [], "agents stay without work")
    assert replicas(home, "burst", "demo") == 0
    assert [item.attempt for item in home.items(ids)] == [1] * 60
    machine.done("delete", "fleet/burst", "-n", "demo")


def test_an_item_that_outlasts_the_cooldown_keeps_its_agent(home: Home) -> None:
    scaling, work = {"maxReplicas": 2, "cooldown": "1s"}, {"slots": 1}
    start = {"kind": "AgentFleet", "template": TEMPLATE, "scaling": scaling, "work": work}
    slow = home.start("slow", **start)  # type: ignore[arg-type]
    home.start("quick", **start)  # type: ignore[arg-type]
    slow.hold()
    long, short = home.submit(f"{NAMESPACE}/slow", "Long.", "Short.")
    until(lambda: slow.held == 2, "not both are at work")
    quick = home.submit(f"{NAMESPACE}/quick", "Quick.")
    until(lambda: is_done(home, quick), "it is not done")
    until(lambda: home.processes("quick") == {}, "its agent stays")  # so the cooldown of both is over
    assert replicas(home, "slow") == len(home.processes("slow")) == 2
    slow.release()
    until(lambda: is_done(home, [long, short]), "they are not done")
    until(lambda: home.processes("slow") == {}, "agents stay without work")
    for name in ("slow", "quick"):
        home.delete(name, "fleet")


def test_a_number_set_by_hand_holds_until_it_is_taken_back(home: Home) -> None:
    machine = home.machine
    scaling = {"maxReplicas": 4, "cooldown": "1s"}
    home.start("hands", kind="AgentFleet", template=TEMPLATE, scaling=scaling, work={"slots": 1})
    until(lambda: condition(home, "hands", "Scaled") == ("True", "ScaledByDemand"), "nothing scales it")
    machine.done("scale", "fleet/hands", "-n", NAMESPACE, "--replicas", "2")
    until(lambda: len(home.processes("hands")) == 2, "there are not two")
    assert condition(home, "hands", "Scaled") == ("True", "FixedByHand")
    assert machine.json("get", "so", "-n", NAMESPACE)["items"] == []
    ids = home.submit(f"{NAMESPACE}/hands", *map(str, range(12)))
    until(lambda: is_done(home, ids), "not all is done")
    assert replicas(home, "hands") == 2

    machine.done("scale", "fleet/hands", "-n", NAMESPACE, "--auto")
    until(lambda: condition(home, "hands", "Scaled") == ("True", "ScaledByDemand"), "nothing scales it")
    until(lambda: home.processes("hands") == {}, "agents stay without work")
    home.delete("hands", "fleet")


@pytest.mark.postgres
def test_a_plane_that_was_killed_goes_on_scaling() -> None:
    with tempfile.TemporaryDirectory(prefix="agentctl-scaling-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # a PostgreSQL that root starts runs as another user
        machine = Machine(Path(folder))
        try:
            first = machine.up(PROVIDER_LATENCY="300ms")
            machine.ready(first)
            machine.done("apply", "-f", "-", stdin=BURST)
            lines = "".join(f"Line {number}. It goes on.\n" for number in range(80))
            machine.done("work", "submit", "demo/burst", "-", "--group", "g", stdin=lines)
            until(lambda: len(machine.agents()) > 1, "it does not grow")
            first.kill()
            first.communicate()
            until(lambda: machine.agents() == [], "agents outlive the plane")
            machine.ready(machine.up(PROVIDER_LATENCY="300ms"))
            watched = machine.run("work", "watch", "demo/burst", "--group", "g", "-o", "json")
            assert watched.returncode == 0, watched.stderr
            assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 80}
            until(lambda: machine.agents() == [], "agents stay without work")
        finally:
            machine.close()


KEYS = [f"account-{number}" for number in range(16)]


@contextmanager
def watched(home: Home, queue: str) -> Iterator[list[dict[str, set[str]]]]:
    """Who holds items of which key, looked at again and again while the block runs."""
    seen: list[dict[str, set[str]]] = []
    over = threading.Event()

    async def look() -> None:
        state = State(home.machine.state)
        identity = Identity(state.identity(ADMINISTRATOR))
        request = coordination_pb.ListItemsRequest(
            queue=queue, states=[work_pb2.WORK_STATE_LEASED], page_size=1000
        )
        async with connect(state.running()["coordination"], identity) as client:
            while not over.is_set():
                holders: dict[str, set[str]] = {}
                for item in (await client.stub.ListItems(request)).items:
                    holders.setdefault(item.labels["key"], set()).add(item.holder)
                seen.append(holders)
                await asyncio.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(asyncio.run, look())
        try:
            yield seen
        finally:
            over.set()
        looking.result()


def submit_keyed(home: Home, queue: str, count: int) -> list[str]:
    """Submits items, each of one of the keys; their ids."""

    def made(number: int) -> Work:
        key = KEYS[number % len(KEYS)]
        payload = f"Number {number}. It goes on.".encode()
        return Work(payload, content_type="text/plain", shard_key=key, labels={"key": key}, group="g")

    async def do(works: Sequence[Work]) -> None:
        state = State(home.machine.state)
        identity = Identity(state.identity(ADMINISTRATOR))
        async with connect(state.running()["coordination"], identity) as client:
            verdicts = await client.submit_all(queue, works)
            assert not [each for each in verdicts if isinstance(each, Exception)]

    works = [made(number) for number in range(count)]
    asyncio.run(do(works))
    return [work.id for work in works]


def test_a_queue_is_divided_anew_under_load_and_each_item_is_done_once(home: Home) -> None:
    machine, queue, count = home.machine, f"{NAMESPACE}/ledger", 480
    pool = {"models": ["agentctl-extractive"]}
    spec: dict[str, Any] = {
        "template": {**TEMPLATE, "model": {"pool": "ledger"}},
        "replicas": 3,
        "scaling": {"mode": "shard", "maxReplicas": 5},
        "work": {"slots": 2, "lease": "300s", "drain": "10s"},
    }
    meta = {"apiVersion": "agentctl.dev/v1alpha1", "metadata": {"name": "ledger", "namespace": NAMESPACE}}
    home.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {**meta, "kind": "ModelPool", "spec": pool},
        {**meta, "kind": "AgentFleet", "spec": spec},
    )

    def divided(shards: int) -> int:
        """The epoch, when there are so many shards, each with its agent."""

        def is_so() -> bool:
            there = home.status("ledger", "AgentFleet").get("shards", {}).get("count")
            return there == len(home.processes("ledger")) == shards and condition(
                home, "ledger", "Sharded"
            ) == ("True", "Sharded")

        until(is_so, f"there are no {shards} shards")
        return int(home.status("ledger", "AgentFleet")["shards"]["epoch"])

    def settled() -> int:
        return sum(item.state == SUCCEEDED for item in home.items(ids))

    epochs = [divided(3)]
    ids = submit_keyed(home, queue, count)
    with watched(home, queue) as seen:
        until(lambda: settled() > 20, "nothing is done")
        machine.done("scale", "fleet/ledger", "-n", NAMESPACE, "--replicas", "5")
        epochs.append(divided(5))
        before = settled()
        until(lambda: settled() > before + 20, "five do nothing")
        victim, pid = sorted(home.processes("ledger").items())[0]
        os.kill(pid, signal.SIGKILL)
        machine.done("scale", "fleet/ledger", "-n", NAMESPACE, "--replicas", "2")
        epochs.append(divided(2))
        assert settled() < count, "the load was over before the division"
        until(lambda: settled() == count, "not all is done")
    results = machine.done("work", "results", queue, "--group", "g", "-o", "json").splitlines()
    assert sorted(json.loads(line)["id"] for line in results) == sorted(ids)
    assert epochs == sorted(set(epochs))
    assert max(len(holders) for each in seen for holders in each.values()) == 1
    assert len({holder for each in seen for holders in each.values() for holder in holders}) >= 3 + 5 + 2
    again = [item for item in home.items(ids) if item.attempt > 1]
    killed = [failure.holder for item in again for failure in item.failures]
    assert {Principal.parse(holder).pod for holder in killed} <= {victim}
    assert {item.shard for item in home.items(ids)} == {0, 1}
    home.delete("ledger", "fleet")
