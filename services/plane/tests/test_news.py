"""What is told, and what is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ..news import _tell, of_agent, of_pod

NEVER_HEARD: dict[str, Any] = {"metadata": {}, "spec": {}, "status": {}}


def agent(status: str, reason: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return {"metadata": {}, "status": {"conditions": [condition]}}


def pod(phase: str = "Running", *, ready: bool = False, policy: str = "Always", **container: Any) -> Any:
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
    return {"metadata": {}, "spec": {"restartPolicy": policy}, "status": status}


def ended(at: str = "1", **end: Any) -> dict[str, Any]:
    return {"state": {"running": {}}, "lastState": {"terminated": {"finishedAt": at, **end}}}


def test_an_agent_is_told_by_its_reason_and_not_by_its_count():
    changing = agent("False", "Progressing", "0 of 2 ready")
    assert of_agent(NEVER_HEARD, changing) == "not ready: Progressing: 0 of 2 ready"
    assert of_agent(changing, agent("False", "Progressing", "1 of 2 ready")) == ""
    assert of_agent(changing, agent("True", "Ready", "2 of 2 ready")) == "ready: 2 of 2 ready"
    assert of_agent(agent("True", "Ready"), None) == "deleted"


def test_what_was_so_at_the_start_is_no_news():
    assert of_agent(None, agent("True", "Ready")) == ""
    assert of_pod(None, pod(ready=True)) == ""


def test_the_way_to_ready_is_one_line():
    steps = [NEVER_HEARD, pod("Pending"), pod(), pod(ready=True), pod(ready=True)]
    said = [of_pod(old, new) for old, new in pairwise(steps)]
    assert said == ["", "", "ready", ""]


def test_an_end_is_told_once_and_says_why():
    was = pod(ready=True)
    killed = pod(**ended(exitCode=137, signal=9))
    assert of_pod(was, killed) == "was ended by SIGKILL; it starts again"
    assert of_pod(killed, killed) == ""
    waiting = pod(**ended(exitCode=137, signal=9), **{})
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert of_pod(killed, waiting) == ""
    again = pod(**ended("2", exitCode=2))
    assert of_pod(waiting, again) == "ended with exit code 2; it starts again"
    probed = pod(**ended("3", exitCode=143, signal=15, message="its liveness probe failed"))
    assert of_pod(again, probed) == "ended: its liveness probe failed; it starts again"


def test_what_does_not_start_again_is_not_said_to():
    assert of_pod(pod(policy="Never"), pod(policy="Never", **ended(exitCode=3))) == "ended with exit code 3"
    done = pod("Succeeded", policy="OnFailure", **ended(exitCode=0))
    assert of_pod(pod(policy="OnFailure"), done) == "is done"


def test_what_an_agent_says_moves_no_cursor_and_floods_no_screen():
    said: list[str] = []
    wild = pod(**ended(exitCode=1, message="\x1b[2Jbye\r\n\ud800" + "x" * 4000))
    for each in (running := pod(), wild):
        each["metadata"] |= {"namespace": "default", "name": "p"}
    _tell(lambda _, event: said.append(event), "Pod", running, wild)
    assert said[0].startswith("pod ended: [2Jbye xxx")
    assert said[0].isprintable()
    assert len(said[0]) < 600


def test_a_report_is_told_by_its_reason():
    said = '{"contract_version": "1.0", "run_id": "r", "status": "deadline", "exit_code": 7, "error": "slow"}'
    failed = pod(policy="Never", **ended(exitCode=7, message=said))
    assert of_pod(pod(policy="Never"), failed) == "ended with exit code 7: deadline: slow"
    done = pod(policy="Never", **ended(exitCode=0, message=said.replace("7", "0")))
    assert of_pod(pod(policy="Never"), done) == "is done"


def test_what_ends_beside_an_agent_is_told_if_it_failed():
    def beside(**container: Any) -> Any:
        made = pod(state={"running": {}})
        made["status"]["initContainerStatuses"] = [container]
        return made

    running = beside(state={"running": {}})
    assert of_pod(running, beside(**ended(exitCode=0))) == ""
    assert of_pod(running, beside(**ended(exitCode=2))) == "ended with exit code 2; it starts again"


def test_what_keeps_a_pod_from_starting_is_told():
    reason = {"reason": "CreateContainerConfigError", "message": "no Secret key"}
    waiting = pod("Pending", state={"waiting": reason})
    assert of_pod(pod("Pending"), waiting) == "waits: CreateContainerConfigError: no Secret key"
    assert of_pod(waiting, waiting) == ""


def test_a_pod_that_is_deleted_is_told_when_it_is_gone():
    stopping = pod(**ended(exitCode=0))
    stopping["metadata"]["deletionTimestamp"] = "now"
    assert of_pod(pod(ready=True), stopping) == ""
    assert of_pod(stopping, None) == "gone"
