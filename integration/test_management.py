"""The verbs on agents at work: by the CLI, by the stub and by grpcurl; each is told by what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentctl.agent.v1 import run_pb2
from agentctl.coordination.v1 import work_pb2
from agentctl.management.v1 import management_service_pb2 as pb
from libs.errors import PreconditionError
from libs.identity import Principal
from libs.state import State

from .machine import Machine, until
from .modes.home import NAMESPACE, Home
from .scripted import Say, Script, Use, scripted
from .toolserver import RESOURCE, ToolServer, toolserver

QUEUE = f"{NAMESPACE}/crew"
FLEET = f"fleet/{QUEUE.partition('/')[2]}"
GRPCURL = Path(sys.executable).parent / "grpcurl"
LEASED, SUCCEEDED, DEAD = (
    work_pb2.WORK_STATE_LEASED, work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD
)  # fmt: skip
LIMITS = {"maxTokens": 10000, "deadline": "10m"}
WORKFLOW = """
steps:
- {name: gather, tool: tools.count, arguments: {text: gathered}}
- {name: think, instruction: Think about it.}
"""


@dataclass(frozen=True)
class Crew:
    """A fleet of two agents, each with two slots. An item is a turn of the model, a call of the tool, and a
    turn."""

    home: Home
    script: Script
    tools: ToolServer

    def begin(self, *texts: str) -> list[str]:
        """Submits items; returns when each is in a call of the tool that is held."""
        self.tools.hold()
        ids = self.home.submit(QUEUE, *texts)
        until(lambda: self.tools.held == len(texts), "not all are in a call")
        return ids

    def fill(self) -> list[str]:
        """Begins as many items as there are slots."""
        return self.begin(*map(str, range(4)))

    def settled(self, ids: Sequence[str]) -> list[work_pb2.Item]:
        """The items, when all have succeeded."""
        until(lambda: {each.state for each in self.home.items(ids)} == {SUCCEEDED}, "not all are done")
        return self.home.items(ids)

    def holders(self, ids: Sequence[str]) -> list[str]:
        """The pods that hold these items, or did so last."""
        return [Principal.parse(item.holder).pod for item in self.home.items(ids)]

    def calls(self, id: str) -> int:
        """Of the tool, for an item."""
        return sum(call.run_id == id for call in self.tools.calls)

    def turns(self, text: str) -> int:
        """Requests to the model about an item."""
        return sum(text in said for said in self.script.texts())

    def told(self) -> dict[str, pb.PodStatus]:
        """What the pods say of themselves."""
        answer = self.home.manage("GetStatus", pb.GetStatusRequest(target=target()))
        return {each.pod: each for each in answer.pods}

    def cli(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A verb on all of it."""
        return self.home.machine.run(verb, FLEET, "-n", NAMESPACE, *arguments)

    def audited(self, reason: str) -> dict[str, Any]:
        """What the only line of the audit log with that reason says."""
        return audited(self.home, reason)

    def exits(self) -> dict[str, list[int]]:
        """By pod, the exit code of the process before the one that runs, if there was one."""
        found = {}
        for pod in self.home.pods("crew"):
            [container] = pod["status"]["containerStatuses"]
            ended = container.get("lastState", {}).get("terminated")
            found[pod["metadata"]["name"]] = [ended["exitCode"]] if ended else []
        return found


def target(pod: str = "", **of: str) -> pb.Target:
    """The crew, or whoever is named."""
    return pb.Target(namespace=NAMESPACE, pod=pod, **(of or {"fleet": "crew"}))


def terms(until: pb.Stage.ValueType = pb.STAGE_IN_EFFECT, **more: Any) -> pb.Terms:
    """With half a minute."""
    said = pb.Terms(until=until, **more)
    said.deadline.FromTimedelta(timedelta(seconds=30))
    return said


def stages(report: pb.Report) -> dict[str, str]:
    """How far it came, by pod."""
    return {each.pod: pb.Stage.Name(each.stage).removeprefix("STAGE_") for each in report.outcomes}


def audited(home: Home, reason: str) -> dict[str, Any]:
    """What the only line of the audit log with that reason says."""
    lines = (home.machine.state / "logs" / "plane.log").read_text().splitlines()
    found = [line for line in map(json.loads, lines) if line.get("reason") == reason]
    [line] = [line for line in found if line["logger"] == "agentctl.audit"]
    return {name: line.get(name) for name in ("event", "who", "what", "target", "decision", "outcome")}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A plane, in memory."""
    with tempfile.TemporaryDirectory(prefix="agentctl-verbs-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            with scripted() as model:
                machine.ready(machine.up("--store", "memory"))
                yield Home(machine, model)
        finally:
            machine.close()


@pytest.fixture(scope="module")
def fleet(home: Home) -> Iterator[Crew]:
    """The fleet, once for all tests."""
    with toolserver() as server:
        replies = Use("count"), Say("Counted.")
        script = home.start(
            "crew", *replies, tools=server, kind="AgentFleet",
            template={"instruction": "Count the item, then say so.", "limits": LIMITS},
            scaling={"minReplicas": 2, "maxReplicas": 2}, work={"slots": 2, "lease": "300s"},
        )  # fmt: skip
        yield Crew(home, script, server)


@pytest.fixture
def crew(fleet: Crew) -> Iterator[Crew]:
    """The fleet, idle and ready."""
    fleet.home.wait("crew")
    yield fleet
    fleet.home.manage("Resume", pb.ResumeRequest(target=target()))
    fleet.home.manage("LameDuck", pb.LameDuckRequest(target=target(), undo=True))
    fleet.tools.release()


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    """A tool server of the test's own."""
    with toolserver() as server:
        yield server


def test_a_fleet_that_is_drained_finishes_what_it_has_begun_and_exits_with_0(crew: Crew) -> None:
    ids = crew.fill()
    before = crew.home.processes("crew")
    with ThreadPoolExecutor() as threads:
        drain = threads.submit(crew.cli, "drain", "--wait", "--deadline", "50s", "--reason", "finish")
        until(lambda: all(each.status.draining for each in crew.told().values()), "they do not drain")
        assert {item.state for item in crew.home.items(ids)} == {LEASED}
        assert not drain.done()
        crew.tools.release()
        found = drain.result()
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "2 of 2 pods drained"), found
    assert [(item.state, item.attempt) for item in crew.home.items(ids)] == [(SUCCEEDED, 1)] * 4
    assert [crew.calls(id) for id in ids] == [1, 1, 1, 1]
    assert crew.audited("finish") == {
        "event": "management.drain",
        "who": "system:serviceaccount:agentctl-system:administrator",
        "what": "drain",
        "target": f"{NAMESPACE}/agentfleets/crew",
        "decision": "allowed",
        "outcome": "done: 2 of 2 pods",
    }
    crew.home.wait("crew")
    after = crew.home.processes("crew")
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert list(crew.exits().values()) == [[0], [0]]


def test_what_a_drain_has_no_time_for_is_handed_back_uncounted(crew: Crew) -> None:
    [id] = crew.begin("to hand back")
    [pod] = crew.holders([id])
    before = crew.home.processes("crew")
    request = pb.DrainRequest(target=target(pod), terms=terms(pb.STAGE_FINISHED))
    request.grace.FromTimedelta(timedelta(seconds=1))
    assert stages(crew.home.manage("Drain", request).report) == {pod: "FINISHED"}
    until(lambda: (crew.calls(id), crew.tools.held) == (2, 1), "nobody takes it over")
    [item] = crew.home.items([id])
    assert (item.state, item.attempt, list(item.failures)) == (LEASED, 1, [])
    crew.tools.release()
    [item] = crew.settled([id])
    assert item.attempt == 1
    crew.home.wait("crew")
    assert crew.exits()[pod] == [0]
    after = crew.home.processes("crew")
    assert [name for name in before if after[name] != before[name]] == [pod]


def test_a_lame_duck_finishes_and_claims_nothing_until_it_is_undone(crew: Crew) -> None:
    [first] = crew.begin("of the duck")
    [duck] = crew.holders([first])
    [other] = crew.told().keys() - {duck}
    report = crew.home.manage("LameDuck", pb.LameDuckRequest(target=target(duck), terms=terms())).report
    assert stages(report) == {duck: "IN_EFFECT"}
    assert report.outcomes[0].run_count == 1
    until(lambda: not is_ready(crew, duck), "its pod stays ready")
    assert is_ready(crew, other)
    crew.tools.release()
    crew.settled([first])
    assert crew.holders([first]) == [duck]
    later = crew.home.submit(QUEUE, *map(str, range(6)))  # the duck has nothing to do, and leaves all of it
    crew.settled(later)
    assert set(crew.holders(later)) == {other}
    request = pb.LameDuckRequest(target=target(duck), terms=terms(), undo=True)
    assert stages(crew.home.manage("LameDuck", request).report) == {duck: "IN_EFFECT"}
    until(lambda: is_ready(crew, duck), "its pod does not get ready again")
    assert set(crew.holders(crew.fill())) == {duck, other}


def is_ready(crew: Crew, pod: str) -> bool:
    """As its pod's status says."""
    [found] = [each for each in crew.home.pods("crew") if each["metadata"]["name"] == pod]
    return bool(found["status"]["containerStatuses"][0]["ready"])


def test_a_paused_agent_holds_its_run_at_its_turn_and_claims_nothing_until_it_is_resumed(crew: Crew) -> None:
    [first] = crew.begin("is held")
    [held] = crew.holders([first])
    [other] = crew.told().keys() - {held}
    found = crew.cli("pause", "--pod", held)
    assert found.returncode == 0, found
    assert "waits for 1 run to come to a step" in found.stdout
    crew.tools.release()
    report = crew.home.manage("Pause", pb.PauseRequest(target=target(held), terms=terms())).report
    assert stages(report) == {held: "IN_EFFECT"}
    assert [run.state for run in report.outcomes[0].runs] == [run_pb2.RUN_STATE_PAUSED]
    later = crew.home.submit(QUEUE, *map(str, range(4)))
    crew.settled(later)
    assert set(crew.holders(later)) == {other}
    assert (crew.turns("is held"), crew.home.items([first])[0].state) == (1, LEASED)
    found = crew.cli("resume", "--until", "in-effect")  # also of whom nobody has paused
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "2 of 2 pods resumed"), found
    crew.settled([first])
    assert (crew.turns("is held"), crew.calls(first), crew.holders([first])) == (2, 1, [held])
    assert set(crew.holders(crew.fill())) == {held, other}


def test_what_is_not_so_is_not_said_to_be_paused_resumed_or_canceled(crew: Crew) -> None:
    [id] = crew.begin("in a call")
    [pod] = crew.holders([id])
    with ThreadPoolExecutor() as threads:
        pause = threads.submit(crew.cli, "pause", "--pod", pod, "--wait", "--deadline", "50s")
        until(lambda: crew.told()[pod].status.paused, "it is not paused")
        found = crew.cli("resume", "--run", id, "--until", "in-effect", "--deadline", "1s")
        assert (found.returncode, "the whole agent is paused" in found.stdout) == (1, True), found
        assert not pause.done()
        assert crew.cli("resume").returncode == 0
        found = pause.result()
    assert (found.returncode, "CONFLICT: the pause was taken back" in found.stdout) == (1, True), found
    crew.tools.release()
    crew.settled([id])
    for verb in ("pause", "resume", "cancel"):
        found = crew.cli(verb, "--run", id)
        assert (found.returncode, "it has already ended: completed" in found.stdout) == (1, True), found


def test_of_all_runs_only_the_one_that_is_named_is_cancelled(crew: Crew) -> None:
    ids = crew.fill()  # another one is beside it
    one, *others = ids
    [pod] = crew.holders([one])
    state = State(crew.home.machine.state).running()
    tls, said = state["tls_dir"], {"namespace": NAMESPACE, "fleet": "crew"}
    data = {"target": said, "run_id": one, "terms": {"reason": "sold out", "until": "STAGE_IN_EFFECT"}}
    found = subprocess.run(
        [GRPCURL, "-cacert", f"{tls}/ca.crt", "-cert", f"{tls}/tls.crt", "-key", f"{tls}/tls.key",
         "-authority", f"apiserver.cp.{state['domain']}", "-d", json.dumps(data),
         state["apiserver"], "agentctl.management.v1.ManagementService/Cancel"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)["report"]
    [outcome] = report["outcomes"]
    assert (report["done_count"], outcome["pod"], outcome["stage"]) == (1, pod, "STAGE_IN_EFFECT")
    until(lambda: crew.home.items([one])[0].state == DEAD, "it is no dead letter")
    dead, *alive = crew.home.items(ids)
    assert "sold out" in dead.failures[-1].error
    assert ([item.state for item in alive], crew.tools.held) == ([LEASED] * 3, 3)
    assert crew.audited("sold out") == {
        "event": "management.cancel",
        "who": "system:serviceaccount:agentctl-system:administrator",
        "what": f"cancel run {one}",
        "target": f"{NAMESPACE}/agentfleets/crew",
        "decision": "allowed",
        "outcome": "done: 1 of 1 pod",
    }
    crew.tools.release()
    crew.settled(others)
    assert [crew.calls(id) for id in ids] == [1, 1, 1, 1]
    [letter] = crew.home.machine.json("dead", "list", QUEUE)["items"]
    assert letter["id"] == one
    assert crew.home.machine.run("cancel", FLEET, "-n", NAMESPACE, "--run", "nobody-knows-it").returncode == 3


def test_a_dry_run_touches_nobody(crew: Crew) -> None:
    [id] = crew.begin("of no concern")
    before, given_up = crew.home.processes("crew"), crew.tools.given_up
    for verb in ("Drain", "LameDuck", "Cancel", "Pause", "Resume"):
        request = getattr(pb, f"{verb}Request")(target=target(), terms=terms(dry_run=True))
        report = crew.home.manage(verb, request).report
        assert (set(stages(report).values()), report.done_count) == ({"WOULD"}, 2), verb
    found = crew.cli("drain", "--dry-run", "--wait")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "2 of 2 pods would be asked"), found
    for each in crew.told().values():
        said = each.status
        assert (said.ready, said.draining, said.paused, said.lame_duck) == (True, False, False, False)
    assert (crew.tools.held, crew.tools.given_up, crew.home.processes("crew")) == (1, given_up, before)
    crew.tools.release()
    assert crew.settled([id])[0].attempt == 1
    assert (crew.calls(id), crew.turns("of no concern")) == (1, 2)


def test_a_pod_that_hangs_costs_the_others_nothing_and_is_named(crew: Crew) -> None:
    pods = crew.home.processes("crew")
    hanging, other = sorted(pods)
    os.kill(pods[hanging], signal.SIGSTOP)
    try:
        found = crew.cli("pause", "--deadline", "3s", "--until", "in-effect", "--reason", "one hangs")
        [line] = [line for line in found.stdout.splitlines() if line.startswith(hanging)]
        assert (found.returncode, line.split()[1:3]) == (1, ["failed", "DEADLINE:"])
        assert f"{other}  paused" in found.stdout
        summary = found.stdout.splitlines()[-1]
        assert summary.startswith(f"1 of 2 pods paused; 1 failed: {hanging}: DEADLINE"), summary
        assert crew.audited("one hangs")["outcome"] == "partial: 1 of 2 pods"
    finally:
        os.kill(pods[hanging], signal.SIGCONT)
    report = crew.home.manage("Resume", pb.ResumeRequest(target=target(), terms=terms())).report
    assert stages(report) == {hanging: "IN_EFFECT", other: "IN_EFFECT"}
    assert set(crew.holders(crew.fill())) == {hanging, other}
    assert crew.home.processes("crew") == pods


def test_strangers_find_nothing_producers_may_not_and_users_of_the_namespace_may(
    crew: Crew, tmp_path: Path
) -> None:
    machine = crew.home.machine
    machine.done("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
    people = {
        "stranger": ("--user", "other"),
        "producer": ("--producer", NAMESPACE),
        "user": ("--user", NAMESPACE),
    }

    def enter(name: str) -> None:
        machine.done("login", *people[name], "--tls-dir", str(tmp_path / name))

    def lame(name: str) -> tuple[int, str]:
        found = machine.run(
            "--tls-dir", str(tmp_path / name), "lame-duck", FLEET, "-n", NAMESPACE, "--reason", name
        )
        return found.returncode, found.stderr

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(enter, people))
        (stranger, told), (producer, why) = threads.map(lame, ["stranger", "producer"])
    assert (stranger, f"no such object: {NAMESPACE}/agentfleets/crew" in told) == (3, True), told
    assert (producer, "may not call" in why) == (4, True), why
    assert not [each for each in crew.told().values() if each.status.lame_duck]
    assert lame("user")[0] == 0
    assert all(each.status.lame_duck for each in crew.told().values())
    who = f"system:serviceaccount:{NAMESPACE}:default"
    assert crew.audited("user")["who"] == who


def test_the_run_of_a_reactive_agent_is_cancelled_and_the_next_change_is_handled(
    home: Home, tools: ToolServer
) -> None:
    tools.hold()
    spec: dict[str, Any] = {
        "mode": "reactive",
        "subscribe": [RESOURCE],
        "instruction": "Count it.",
        "limits": LIMITS,
    }
    home.start("reacts", Use("count"), Say("Handled."), tools=tools, **spec)
    until(lambda: tools.held == 1, "it does not react")
    found = home.machine.run("cancel", "reacts", "-n", NAMESPACE, "--until", "in-effect")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "1 of 1 pod canceled"), found
    until(lambda: tools.given_up == 1, "the call goes on")
    assert dict(home.told("reacts").ended_runs) == {"cancelled": 1}
    tools.release()
    tools.change("a letter")
    until(lambda: home.told("reacts").ended_runs["completed"] == 1, "it does not react any more")
    home.delete("reacts")


def test_a_workflow_is_paused_between_its_steps(home: Home, tools: ToolServer) -> None:
    tools.hold()
    spec: dict[str, Any] = {"mode": "workflow", "workflow": {"inline": WORKFLOW}, "limits": LIMITS}
    script = home.start("flows", Say("A thought."), tools=tools, **spec)
    until(lambda: tools.held == 1, "it does not gather")
    request = pb.PauseRequest(target=target(agent="flows"), terms=terms(pb.STAGE_ACCEPTED))
    assert list(stages(home.manage("Pause", request).report).values()) == ["ACCEPTED"]
    tools.release()
    request.terms.until = pb.STAGE_IN_EFFECT
    assert list(stages(home.manage("Pause", request).report).values()) == ["IN_EFFECT"]
    assert [run.state for run in home.told("flows").runs] == [run_pb2.RUN_STATE_PAUSED]
    assert (tools.texts(), script.asked) == (["gathered"], [])
    found = home.machine.run("resume", "agent/flows", "-n", NAMESPACE)
    assert found.returncode == 0, found
    last = home.ended("flows")
    assert (last["outcome"], last["exitCode"], last["reason"]) == ("Succeeded", 0, "completed"), last
    assert (len(tools.calls), len(script.asked)) == (1, 1)
    with pytest.raises(PreconditionError, match="no pod that runs"):
        home.manage("Pause", request)
