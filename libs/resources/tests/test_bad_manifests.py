"""What is refused and what is accepted, by the local home and by a real API server, in the same words.

The second half needs AGENTCTL_TEST_KUBECONFIG, kubectl, and a cluster with `k8s/base/crds`, which it does not
change.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from libs.cluster.local.schema import Validator
from libs.errors import InvalidError
from libs.resources.crds import DECLARED
from libs.resources.tests.bad_manifests import BAD
from libs.resources.tests.good_manifests import GOOD

_ROOT = Path(__file__).parents[3]
_IN_DOCS = re.findall(r"```yaml\n(.*?)```", (_ROOT / "docs/resources.md").read_text(), re.DOTALL)
_ACCEPTED = {
    **GOOD,
    **{str(path.relative_to(_ROOT)): path.read_text() for path in sorted(_ROOT.glob("examples/**/*.yaml"))},
    **{f"resources.md, {number}": text for number, text in enumerate(_IN_DOCS, start=1)},
}
_SPECS = {declared.kind.name: declared.spec for declared in DECLARED}


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("AGENTCTL_TEST_KUBECONFIG", "")
    if not path:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    return path


def _kubectl(kubeconfig: str, manifest: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", "--kubeconfig", kubeconfig, "create", "--dry-run=server", "-f", "-"]
    return subprocess.run(command, input=manifest, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("name", BAD)
def test_the_local_home_refuses_it(name):
    manifest, fragment = BAD[name]
    thing = _in_a_namespace(yaml.safe_load(manifest))
    with pytest.raises(InvalidError) as refused:
        Validator().validated(thing)
    assert fragment in str(refused.value)


@pytest.mark.parametrize("name", _ACCEPTED)
def test_the_local_home_accepts_it(name):
    for thing in yaml.safe_load_all(_ACCEPTED[name]):
        if thing["apiVersion"].startswith("agentctl.dev/"):
            accepted = Validator().validated(_in_a_namespace(thing))
            assert accepted["spec"].keys() >= thing["spec"].keys()
            assert Validator().validated(accepted) == accepted


@pytest.mark.parametrize("name", GOOD)
def test_what_is_accepted_can_be_read_and_loses_nothing(name):
    thing = Validator().validated(_in_a_namespace(yaml.safe_load(GOOD[name])))
    read = msgspec.convert(thing["spec"], _SPECS[thing["kind"]], strict=True)
    # Python leaves out what is at its default; the validator fills it in again.
    assert Validator().validated(thing | {"spec": msgspec.to_builtins(read)}) == thing


def _in_a_namespace(thing):
    """As kubectl does with a manifest that names none."""
    thing["metadata"].setdefault("namespace", "default")
    return thing


@pytest.mark.cluster
@pytest.mark.parametrize("name", BAD)
def test_kubernetes_refuses_it_in_these_words(kubeconfig, name):
    manifest, fragment = BAD[name]
    done = _kubectl(kubeconfig, manifest)
    assert done.returncode != 0
    assert fragment in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("name", GOOD)
def test_kubernetes_accepts_it(kubeconfig, name):
    done = _kubectl(kubeconfig, GOOD[name])
    assert (done.returncode, done.stderr) == (0, "")
