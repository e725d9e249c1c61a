"""The local home's verdict on any object is the API server's: on manifests that were broken at random.

Needs AGENTCTL_TEST_KUBECONFIG and a cluster with `k8s/base/crds`, which it does not change.
"""

from __future__ import annotations

import copy
import json
import os
import random

import pytest
import yaml
from kubernetes import client, config

from libs.cluster.kinds import kind_of
from libs.cluster.local.schema import Validator
from libs.errors import InvalidError
from libs.resources.tests.bad_manifests import BAD
from libs.resources.tests.good_manifests import GOOD

pytestmark = pytest.mark.cluster

_GOOD = [yaml.safe_load(text) for text in GOOD.values()]
_ANY = _GOOD + [yaml.safe_load(text) for text, _ in BAD.values()]
_SCALARS = [
    "", "a", "A b", "5m", "0s", "1h61m", "100000h", "30s\n", " 5m", "\u00a0", "ünï", "a" * 70, "a" * 300,
    0, 1, -1, 5, 300, 10**12, True, False, None, [], {}, ["a", "a"], {"a": "b"},
    "once", "loop", "schedule", "workflow", "reactive", "@daily", "* * * * *", "AGENT_X", "/tmp",
    "https://x/v1", "http://[::1]:1/", "https://x:99999999/", "a:b", "a/b:c@d", "1.5Gi", "1e3",
]  # fmt: skip


@pytest.fixture(scope="module")
def api():
    path = os.environ.get("AGENTCTL_TEST_KUBECONFIG", "")
    if not path:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    with config.new_client_from_config(path) as connection:
        yield client.CustomObjectsApi(connection)


@pytest.mark.parametrize("seed", range(200))
def test_the_homes_agree(api, seed):
    thing = _broken(random.Random(seed))
    assert _local(thing) == _real(api, thing), json.dumps(thing)


def _broken(rnd):
    thing = copy.deepcopy(rnd.choice(_GOOD))
    thing["metadata"]["namespace"] = "default"
    for _ in range(rnd.choice((1, 1, 2))):
        places = list(_places(thing["spec"]))
        if not places:
            break
        parent, key = rnd.choice(places)
        what = rnd.random()
        if what < 0.2:
            del parent[key]
        elif what < 0.3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif what < 0.6:
            parent[key] = copy.deepcopy(rnd.choice(_SCALARS))
        else:
            other, name = rnd.choice(list(_places(rnd.choice(_ANY))))
            parent[name if isinstance(parent, dict) and isinstance(name, str) else key] = copy.deepcopy(
                other[name]
            )
    return thing


def _places(value):
    """Every member of every object and list in a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _local(thing):
    """The spec as it would be stored, or None if it is refused."""
    try:
        return Validator().validated(thing)["spec"]
    except InvalidError:
        return None


def _real(api, thing):
    kind = kind_of(thing["apiVersion"], thing["kind"])
    where = (kind.group, kind.version, thing["metadata"]["namespace"], kind.plural)
    try:
        made = api.create_namespaced_custom_object(*where, thing, dry_run="All", field_validation="Strict")
    except client.ApiException as refused:
        if refused.status not in (400, 422):
            raise
        return None
    return made["spec"]
