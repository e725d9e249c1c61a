"""`agentctl conformance`: the reference agent keeps the whole contract; what agentd 1.x cannot, by name."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libs.testing.mesh import Mesh
from libs.testing.ports import free_port

from .machine import until

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
BRIDGED = shlex.join([sys.executable, "-m", "integration.bridged"])
ROLE = "agent/worker/uid-1"

LIMITS = {
    "EXIT-05": "agentd 1.0 in mode once asks its model once only",
    "EXIT-06": "the same",
    "EXIT-07": "agentd knows no refusal by its model: 0",
    "EXIT-08": "a run that agentd begins by itself cannot be ended but by a drain",
    "EXIT-12": "agentd looks at its deadline between turns only",
    "EXIT-13": "agentd has no bound of its own for an answer: 0",
    "EXIT-14": "agentd takes an answer that the provider cut off for a whole one: 0",
    "EXIT-15": "agentd names a detector of repeated calls, and has none",
    "REPORT-03": "agentd's code for a refusal is 0; the report says refused",
    "LIMIT-03": "agentd's bound for a tool is 60 s, and cannot be set",
    "LIMIT-04": "agentd has no bound for what a tool says",
    "DRAIN-01": "told to end, agentd ends a run after the turn that it is in",
    "DRAIN-02": "agentd's code for a drain is always 0",
    "DRAIN-03": "the same",
    "REACT-03": "agentd subscribes again, and does not look at what changed meanwhile",
}
"""What fails of agentd with its bridge, and why no bridge can mend it: the exit code and what is told to the
model are agentd's own."""

ABSENT = {
    "MANIFEST-06": "the pod has no --capabilities",
    **{f"WORK-0{number}": "the stand-in has no workflows" for number in range(1, 6)},
}
"""What is skipped."""


def tried(*arguments: str) -> dict[str, dict[str, Any]]:
    """Outcomes by id."""
    ended = subprocess.run(
        [PROGRAMS / "agentctl", "conformance", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode in (0, 1), ended.stderr
    outcomes = {each["id"]: each for each in json.loads(ended.stdout)["cases"]}
    assert ended.returncode == any(each["verdict"] == "FAIL" for each in outcomes.values())
    return outcomes


def of(outcomes: dict[str, dict[str, Any]], verdict: str) -> dict[str, str]:
    """Messages by id."""
    return {id: each["message"] for id, each in outcomes.items() if each["verdict"] == verdict}


def test_the_reference_agent_keeps_the_whole_contract() -> None:
    outcomes = tried("--command", str(PROGRAMS / "agentctl-agent"))
    assert not of(outcomes, "FAIL")
    assert not of(outcomes, "SKIP")
    assert len(outcomes) > 100


def test_agentd_with_its_bridge_keeps_all_but_what_agentd_cannot() -> None:
    outcomes = tried("--command", BRIDGED)
    failed = of(outcomes, "FAIL")
    assert set(failed) == set(LIMITS), {id: failed.get(id) for id in set(failed) ^ set(LIMITS)}
    skipped = of(outcomes, "SKIP")
    assert set(skipped) == set(ABSENT), skipped


def test_a_bridged_agent_that_runs_is_looked_at_and_put_back(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    with _running(mesh, tmp_path) as address:
        outcomes = tried(
            *(address, "--verbs", "--tls-dir", str(mesh.identity("cp/apiserver").folder)),
            *("--only", "MANIFEST", "--only", "STATUS", "--only", "HEALTH", "--only", "AUTH"),
            *("--only", "VERB", "--only", "EVENT"),
        )
    assert not of(outcomes, "FAIL")
    passed = set(of(outcomes, "PASS"))
    assert passed >= {"MANIFEST-01", "HEALTH-03", "VERB-PAUSE-02", "VERB-LAMEDUCK-01", "EVENT-05"}


@contextmanager
def _running(mesh: Mesh, folder: Path) -> Iterator[str]:
    """A pod of bridge and agent that waits; the address of its AgentService."""
    port, plain = free_port(), free_port()
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = kept | {
        "AGENTCTL_TLS_DIR": str(mesh.identity(ROLE).folder),
        "AGENT_MODE": "loop",
        "AGENT_LOOP_INTERVAL": "1h",
        "AGENT_INSTRUCTION": "Wait.",
        "AGENT_PORT": str(port),
        "AGENT_METRICS_PORT": str(plain),
    }
    with (folder / "pod.log").open("wb") as log:
        pod = subprocess.Popen(
            shlex.split(BRIDGED), cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: _is_ready(plain), "the pod is not ready")
        yield f"127.0.0.1:{port}"
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(20) == 0
    finally:
        pod.kill()
        pod.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
            return True
    except OSError:
        return False
