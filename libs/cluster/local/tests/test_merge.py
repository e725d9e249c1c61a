"""Server-side apply, as pure functions."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cluster.kinds import AGENT, DEPLOYMENT, MCP_SERVER_SET, SCALED_OBJECT
from libs.cluster.local import merge
from libs.errors import InvalidError

SHAPE = merge.Shape(DEPLOYMENT)

names = st.sampled_from("abcde")
scalars = st.integers(0, 3) | st.text("xy", max_size=2) | st.booleans()
values = st.recursive(
    scalars | st.lists(scalars, max_size=3),
    lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": names}, optional={"image": scalars, "args": st.lists(scalars, max_size=2)}
    ),
    unique_by=lambda container: str(container["name"]),
    max_size=4,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "data": st.dictionaries(names, values, max_size=4),
        "spec": st.fixed_dictionaries({}, optional={"containers": containers, "replicas": st.integers(0, 3)}),
    },
)


class Applied:
    """What a store does with one object: the live value, and what each manager named."""

    def __init__(self, live):
        self.live, self.named = live, {}

    def apply(self, manager, document):
        named = merge.fields(document, SHAPE)
        others = [paths for other, paths in self.named.items() if other != manager]
        result = merge.merged(self.live, document, SHAPE)
        gone = self.named.get(manager, frozenset()) - named
        result = merge.removed(result, gone, named.union(*others), SHAPE)
        for other, paths in self.named.items():
            self.named[other] = paths - merge.changed(self.live, result, paths, SHAPE)
        self.live, self.named[manager] = result, named
        return copy.deepcopy(result)


def unordered(value, path=()):
    """With keyed lists by their keys: whose items come first depends on who came first."""
    if isinstance(value, dict):
        return {key: unordered(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list) and SHAPE.keys(path):
        return {step: unordered(item, (*path, step)) for step, item in SHAPE.items(path, value).items()}
    return value


@given(documents, documents)
def test_applying_twice_changes_nothing(live, document):
    object_ = Applied(live)
    once = object_.apply("me", document)
    assert object_.apply("me", document) == once


def at(value, path):
    for depth, step in enumerate(path):
        value = (value if isinstance(step, str) else SHAPE.items(path[:depth], value))[step]
    return value


@given(documents, documents)
def test_all_that_was_said_is_so(live, document):
    result = Applied(live).apply("me", document)
    said = merge.fields(document, SHAPE)
    empty = {path for path in said if merge.changed(document, result, [path], SHAPE)}
    # an empty map or list says only that there is one: what is in it stays
    assert all(at(document, path) in ({}, []) for path in empty)


@given(documents)
def test_naming_nothing_removes_all_that_i_named(document):
    object_ = Applied({})
    object_.apply("me", document)
    assert object_.apply("me", {}) == {}


@given(documents, documents)
def test_what_another_named_stays_when_i_name_it_no_more(mine, theirs):
    object_ = Applied({})
    object_.apply("they", theirs)
    object_.apply("me", mine)
    kept = object_.named["they"]
    before = copy.deepcopy(object_.live)
    object_.apply("me", {})
    assert not merge.changed(before, object_.live, kept, SHAPE)


@given(documents, documents)
def test_two_who_say_different_fields_commute(one, two):
    mine = {"data": {f"my-{key}": value for key, value in one.get("data", {}).items()}}
    theirs = {"data": {f"their-{key}": value for key, value in two.get("data", {}).items()}}
    renamed = [
        container | {"name": f"my-{container['name']}"}
        for container in one.get("spec", {}).get("containers", ())
    ]
    mine["spec"] = {"containers": renamed}
    theirs["spec"] = {"containers": two.get("spec", {}).get("containers", [])}
    forth, back = Applied({}), Applied({})
    forth.apply("me", mine)
    forth.apply("they", theirs)
    back.apply("they", theirs)
    back.apply("me", mine)
    assert unordered(forth.live) == unordered(back.live)


@given(containers, containers)
def test_the_order_of_a_list_that_two_share_settles(one, two):
    object_ = Applied({})
    two = [container for container in two if container["name"] not in {other["name"] for other in one}]
    object_.apply("me", {"spec": {"containers": one}})
    object_.apply("they", {"spec": {"containers": two}})
    settled = copy.deepcopy(object_.live)
    assert object_.apply("me", {"spec": {"containers": one}}) == settled
    assert object_.apply("they", {"spec": {"containers": two}}) == settled


def order(live, said):
    document = {"spec": {"containers": [{"name": name} for name in said]}}
    start = {"spec": {"containers": [{"name": name} for name in live]}}
    return "".join(item["name"] for item in merge.merged(start, document, SHAPE)["spec"]["containers"])


@pytest.mark.parametrize(
    ("live", "said", "result"),
    [
        ("abc", "abc", "abc"),
        ("abc", "cab", "cab"),
        ("abc", "ca", "cba"),
        ("ab", "xab", "xab"),
        ("ab", "axb", "axb"),
        ("ab", "abx", "abx"),
        ("ab", "x", "abx"),
        ("", "ba", "ba"),
    ],
)
def test_a_keyed_list_takes_the_order_that_was_said(live, said, result):
    assert order(live, said) == result


def test_items_of_a_keyed_list_are_merged_by_key():
    live = {"spec": {"containers": [{"name": "agent", "image": "a"}, {"name": "sidecar", "image": "s"}]}}
    said = {"spec": {"containers": [{"name": "agent", "args": ["-v"]}]}}
    assert merge.merged(live, said, SHAPE)["spec"]["containers"] == [
        {"name": "agent", "image": "a", "args": ["-v"]},
        {"name": "sidecar", "image": "s"},
    ]


def test_an_item_named_no_more_goes_with_what_nobody_named_in_it():
    object_ = Applied({})
    object_.apply("me", {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})
    object_.live["spec"]["containers"][1]["terminationMessagePath"] = "/dev/null"
    assert object_.apply("me", {"spec": {"containers": [{"name": "a"}]}}) == {
        "spec": {"containers": [{"name": "a"}]}
    }


def test_who_changes_a_field_has_it_alone():
    object_ = Applied({})
    object_.apply("me", {"spec": {"replicas": 1}})
    object_.apply("they", {"spec": {"replicas": 5}})
    assert object_.apply("me", {}) == {"spec": {"replicas": 5}}


def test_a_list_that_is_one_value_is_replaced_whole():
    assert merge.merged({"args": [1, 2]}, {"args": [3]}, SHAPE) == {"args": [3]}


def test_which_lists_are_keyed_depends_on_the_kind():
    conditions = ("status", "conditions")
    assert merge.Shape(AGENT).keys(conditions) == ("type",)
    assert merge.Shape(MCP_SERVER_SET).keys(("spec", "servers")) == ("name",)
    assert merge.Shape(SCALED_OBJECT).keys(("spec", "triggers")) == ()
    in_agent = ("spec", "podTemplate", "spec", "containers", ("agent",), "env")
    assert merge.Shape(AGENT).keys(in_agent) == ("name",)
    for containers in ("containers", "initContainers"):
        ports = ("spec", "template", "spec", containers, ("agent",), "ports")
        assert SHAPE.keys(ports) == ("containerPort", "protocol")
    assert SHAPE.keys(("spec", "ports")) == ("port", "protocol")


@pytest.mark.parametrize(
    ("containers", "where", "what"),
    [
        ([{"name": "a"}, {"name": "a"}], "spec.containers[1]", 'Duplicate value: {"name": "a"}'),
        ([{"image": "a"}], "spec.containers[0].name", "Required value"),
        (["a"], "spec.containers[0].name", "Required value"),
        ([{"name": True}], "spec.containers[0].name", "Required value"),
    ],
)
def test_a_keyed_list_without_keys_is_refused(containers, where, what):
    with pytest.raises(InvalidError) as caught:
        merge.fields({"spec": {"containers": containers}}, SHAPE)
    assert caught.value.violations == {where: what}


def test_null_says_nothing():
    assert merge.without_nulls({"a": None, "b": {"c": None}, "d": [{"e": None}]}) == {"b": {}, "d": [{}]}


class Counted(merge.Shape):
    """Counts how many items of lists are looked at."""

    looked_at = 0

    def items(self, path, value):
        self.looked_at += len(value)
        return super().items(path, value)


def test_a_list_is_looked_through_once_however_many_fields_it_has():
    count = 1_000
    shape = Counted(DEPLOYMENT)
    env = [{"name": f"V{index}", "value": "1"} for index in range(count)]
    before = {"spec": {"template": {"spec": {"containers": [{"name": "a", "env": env}]}}}}
    after = copy.deepcopy(before)
    after["spec"]["template"]["spec"]["containers"][0]["env"] = [each | {"value": "2"} for each in env]
    paths = merge.fields(before, shape)
    shape.looked_at = 0
    assert len(merge.changed(before, after, paths, shape)) == count
    assert merge.removed(before, paths, (), shape) == {}
    assert merge.removed(before, paths, paths, shape) == before
    assert shape.looked_at < 10 * count


def test_new_items_come_after_the_one_that_they_follow_in_the_document():
    def named(names):
        return {"spec": {"template": {"spec": {"containers": [{"name": name} for name in names]}}}}

    def order(live, said):
        whole = merge.merged(named(live), named(said), SHAPE)
        return "".join(each["name"] for each in whole["spec"]["template"]["spec"]["containers"])

    assert order("abc", "xbyza") == "xbyzac"
    assert order("", "xyz") == "xyz"
    assert order("ab", "xy") == "abxy"
