"""Plans and runs on a real Kubernetes: it takes what is rendered, keeps it as it is, and its Job controller
does with exit codes what the table says."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml

from libs.cluster import Object
from libs.cluster.kinds import JOB, SCALED_OBJECT
from services.operator.identity.attest import fingerprint
from services.operator.plan import Action, change
from services.operator.status import Observed, status

from .manifests import agent, case, cases, plan_of, plan_of_case, pod_of

pytestmark = pytest.mark.cluster
KUBECONFIG = os.environ.get("AGENTCTL_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("AGENTCTL_TEST_IMAGE", "")
"""An image with /bin/sh that the cluster's nodes have."""
_REPORT = json.dumps(
    {
        "contract_version": "1.0",
        "run_id": "$AGENT_RUN_ID",
        "status": "ended",
        "exit_code": 0,
        "error": "$AGENT_RUN_ID",
        "usage": {"steps": 3},
    }
).replace('"', '\\"')
_DRY_APPLY = ("apply", "--server-side", "--field-manager=plan", "--dry-run=server", "-o", "yaml", "-f", "-")


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A namespace that enforces the restricted pod security standard, with what agents' pods need."""
    if not KUBECONFIG:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    name = f"plan-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    metadata = {"name": name, "labels": labels}
    kubectl("create", "-f", "-", manifest={"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        for kind, needed in (
            ("ServiceAccount", "default"), ("ServiceAccount", "reader"), ("ConfigMap", "agentctl-trust"),
        ):  # fmt: skip
            wanted = {"apiVersion": "v1", "kind": kind, "metadata": {"name": needed}}
            kubectl("apply", "-n", name, "-f", "-", manifest=wanted)
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("name", cases())
def test_a_real_api_server_takes_it_and_its_pods(name, namespace):
    first, _ = case(name)
    for manifest in plan_of_case(name).objects:
        if manifest["kind"] == SCALED_OBJECT.name:
            continue  # of KEDA, which need not be there
        placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
        said = kubectl(*_DRY_APPLY, manifest=placed)
        assert "Warning" not in said.stderr  # of the pod security standard, or of a field that is not there
        kept = change(first, placed, yaml.safe_load(said.stdout))
        assert kept.action is Action.NONE  # with all that an API server adds, it is as it should be
        if template := pod_of(manifest):
            pod = {"apiVersion": "v1", "kind": "Pod", **template, "spec": _without_classes(template["spec"])}
            pod["metadata"] = {**template["metadata"], "name": "p", "namespace": namespace}
            made = json.loads(
                kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", manifest=pod).stdout
            )
            kept = pod_of(yaml.safe_load(said.stdout))["spec"]
            # with all that an API server adds to either, the pod gets the agent's identity
            assert fingerprint(made["spec"]) == fingerprint(_without_classes(kept))


@pytest.mark.skipif(not IMAGE, reason="AGENTCTL_TEST_IMAGE names no image")
@pytest.mark.parametrize(
    ("code", "pods", "outcome", "intent"),
    [
        (0, 1, "Succeeded", "complete"),
        (1, 2, "Failed", "retriable"),
        (3, 1, "Failed", "policy"),
        (5, 1, "Failed", "terminal"),
    ],
)
def test_a_run_is_retried_and_reported_as_its_exit_code_says(code, pods, outcome, intent, namespace):
    container = {
        "name": "agent",
        "command": ["/bin/sh", "-c", f'echo "{_REPORT}" > $AGENT_REPORT_FILE; exit {code}'],
        "imagePullPolicy": "IfNotPresent",
    }
    what = agent(
        f"code-{code}", image=IMAGE, runs={"retries": 1}, podTemplate={"spec": {"containers": [container]}}
    )
    what["metadata"]["namespace"] = namespace
    kept = json.loads(_create(what))
    (job,) = plan_of(kept).objects
    kubectl("apply", "--server-side", "--field-manager=plan", "-f", "-", manifest=job)
    done = "--for=condition=" + ("Complete" if code == 0 else "Failed")
    kubectl("wait", done, f"job/code-{code}", "-n", namespace, "--timeout=50s")
    live = json.loads(kubectl("get", "job", f"code-{code}", "-n", namespace, "-o", "json").stdout)
    selector = f"--selector=agentctl.dev/agent=code-{code}"
    seen = json.loads(kubectl("get", "pods", selector, "-n", namespace, "-o", "json").stdout)["items"]
    said = status(kept, Observed(datetime.now(UTC), plan_of(kept), {(JOB, f"code-{code}"): live}, seen))
    assert len(seen) == pods
    assert (said["lastRun"]["outcome"], said["lastRun"]["exitCode"]) == (outcome, code)
    assert (said["lastRun"]["intent"], said["runs"]) == (intent, 1)
    assert (said["lastRun"]["reason"], said["lastRun"]["steps"]) == ("ended", 3)
    assert said["lastRun"]["message"] == live["metadata"]["uid"]  # what the pod was told of its run's id
    assert said["workloads"] == [{"kind": "Job", "name": f"code-{code}", "uid": live["metadata"]["uid"]}]
    assert change(kept, job, live).action is Action.NONE


def _without_classes(spec: Object) -> Object:
    return {k: v for k, v in spec.items() if k not in ("runtimeClassName", "priorityClassName")}


def _create(what):
    """The object's owner has to be there, or the garbage collector takes the Job."""
    metadata = {key: what["metadata"][key] for key in ("name", "namespace")}
    return kubectl("create", "-o", "json", "-f", "-", manifest={**what, "metadata": metadata}).stdout


def kubectl(*args: str, manifest: Object | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it; the test fails with what it says."""
    text = yaml.safe_dump(manifest) if manifest else None
    ran = subprocess.run(
        ["kubectl", "--kubeconfig", KUBECONFIG, *args], input=text, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran
