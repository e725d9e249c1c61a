"""What holds for every pod template that may be written, and for every order in which it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.operator.plan.owned import TEMPLATE_HASH

from .manifests import agent, case, cases, fleet, plan_of, pod_of, workload_of

_BARE = pod_of(workload_of(plan_of(fleet(template={"image": "x", "instruction": "i"}))))
_CONTAINER = _BARE["spec"]["containers"][0]
_OURS = {
    "env": sorted(each["name"] for each in _CONTAINER["env"]),
    "mountPath": sorted(each["mountPath"] for each in _CONTAINER["volumeMounts"]),
    "volumes": sorted(each["name"] for each in _BARE["spec"]["volumes"]),
    "labels": sorted(_BARE["metadata"]["labels"]),
}
_WORD = st.text("abcxyz", min_size=1, max_size=6)


def _named(ours, key, **more):
    """Things under names of ours and of others."""
    name = st.sampled_from(ours) | _WORD
    return st.lists(st.fixed_dictionaries({key: name, **more}), max_size=6, unique_by=lambda each: each[key])


_KEYS = st.sampled_from([*_OURS["labels"], "agentctl.dev/other"]) | _WORD
_QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "example.com/gpu"]), st.sampled_from(["1", "2Gi"])
)
_TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(_KEYS, _WORD, max_size=5),
                "annotations": st.dictionaries(_KEYS, _WORD, max_size=5),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.tuples(
                    st.fixed_dictionaries(
                        {"name": st.just("agent")},
                        optional={
                            "env": _named(_OURS["env"], "name", value=_WORD),
                            "volumeMounts": _named(_OURS["mountPath"], "mountPath", name=_WORD),
                            "command": st.lists(_WORD, max_size=2),
                            "args": st.lists(_WORD, max_size=2),
                            "resources": st.fixed_dictionaries(
                                {}, optional={"requests": _QUANTITIES, "limits": _QUANTITIES}
                            ),
                        },
                    )
                ).map(list),
                "volumes": _named(_OURS["volumes"], "name", emptyDir=st.just({"medium": "Memory"})),
                "serviceAccountName": _WORD,
                "terminationGracePeriodSeconds": st.integers(30, 3600),
                "nodeSelector": st.dictionaries(_WORD, _WORD, max_size=2),
            },
        ),
    },
)


def _render(template):
    part = {"image": "x", "instruction": "i", "podTemplate": template}
    return pod_of(workload_of(plan_of(fleet(template=part))))


def _by(key, things):
    found = {each[key]: each for each in things}
    assert len(found) == len(things)  # the API server refuses doubles
    return found


@given(_TEMPLATES)
def test_a_pod_template_takes_nothing_of_ours_away(template):
    pod = _render(template)
    container = pod["spec"]["containers"][0]
    for key, list_name in (("name", "env"), ("mountPath", "volumeMounts")):
        assert _by(key, _CONTAINER[list_name]).items() <= _by(key, container[list_name]).items()
    assert _by("name", _BARE["spec"]["volumes"]).items() <= _by("name", pod["spec"]["volumes"]).items()
    assert _BARE["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    mine = {
        key for key in pod["metadata"]["labels"] if key.startswith(("agentctl.dev/", "app.kubernetes.io/"))
    }
    assert mine == set(_OURS["labels"])
    for key in (
        "securityContext",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "ports",
        "image",
        "name",
    ):
        assert container[key] == _CONTAINER[key]
    for key in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod["spec"][key] == _BARE["spec"][key]


@given(_TEMPLATES)
def test_what_a_pod_template_adds_is_there(template):
    pod = _render(template)
    said = template.get("spec", {})
    theirs = (said.get("containers") or [{}])[0]
    container = pod["spec"]["containers"][0]
    for each in theirs.get("env", []):
        assert each["name"] in _OURS["env"] or each in container["env"]
    for each in theirs.get("volumeMounts", []):
        assert each["mountPath"] in _OURS["mountPath"] or each in container["volumeMounts"]
    for key in ("command", "args"):
        assert container.get(key) == (theirs.get(key) or None)
    for key in ("serviceAccountName", "nodeSelector"):
        assert pod["spec"].get(key) == (said.get(key) or None)
    assert pod["spec"]["terminationGracePeriodSeconds"] == said.get("terminationGracePeriodSeconds", 35)


@given(_TEMPLATES)
def test_requests_are_ours_unless_they_or_limits_are_said(template):
    said = ((template.get("spec", {}).get("containers") or [{}])[0]).get("resources", {})
    resources = _render(template)["spec"]["containers"][0]["resources"]
    for key, ours in (("cpu", "100m"), ("memory", "128Mi")):
        asked, limit = said.get("requests", {}).get(key), said.get("limits", {}).get(key)
        assert resources["requests"].get(key) == (asked or (None if limit else ours))
    assert resources.get("limits", {}) == said.get("limits", {})


def _shuffled(value, random):
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: _shuffled(value[key], random) for key in keys}
    return [_shuffled(each, random) for each in value] if isinstance(value, list) else value


@given(st.sampled_from(cases()), st.randoms(use_true_random=False))
def test_the_same_spec_in_another_order_is_the_same_plan(name, random):
    first, others = case(name)
    plan = plan_of(first, *others)
    other = plan_of(_shuffled(first, random), *_shuffled(others, random))
    assert plan == other
    assert _hashes(plan) == _hashes(other)


@given(st.text("abc", max_size=3), st.text("abc", max_size=3))
def test_the_hash_of_a_template_tells_specs_apart(one, other):
    plans = [plan_of(agent(instruction=f"Say {text}.")) for text in (one, other)]
    assert (_hashes(plans[0]) == _hashes(plans[1])) == (one == other)


def _hashes(plan):
    return [each["metadata"]["annotations"][TEMPLATE_HASH] for each in plan.objects]
