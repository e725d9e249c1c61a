"""What a container's variables and words become."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.cluster.local.runner.environment import MOST_TEXT, expanded, field_of
from libs.cluster.local.runner.volumes import translated
from libs.errors import InvalidError

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a/b": "c", "d": "e"}},
    "spec": {"nodeName": "local"},
    "status": {"podIP": "127.64.0.1", "hostIP": "127.0.0.1"},
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(UNKNOWN) $A ${A}", "$(UNKNOWN) $A ${A}"),
        ("$$(A) $$$(A)", "$(A) $1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text, result):
    assert expanded(text, {"A": "1", "B": "2"}) == result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['a/b']", "c"),
        ("metadata.annotations['none']", ""),
        ("metadata.labels", 'a/b="c"\nd="e"'),
        ("spec.nodeName", "local"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.64.0.1"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_fields_are_those_of_the_downward_api(path, value):
    assert field_of(POD, path) == value


def test_another_field_is_refused():
    with pytest.raises(InvalidError, match=r"spec\.secrets"):
        field_of(POD, "spec.secrets")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/run/a", "/real/a"),
        ("/run/a/x", "/real/a/x"),
        ("/run/ab", "/run/ab"),
        ("/run/a/deep/x", "/real/deep/x"),
        ("see /run/a", "see /run/a"),
    ],
)
def test_paths_at_or_under_a_mount_are_put_right(text, result):
    mounts = {"/run/a": Path("/real/a"), "/run/a/deep": Path("/real/deep")}
    assert translated(text, mounts) == result


def test_variables_that_name_each_other_do_not_explode():
    assert expanded("$(A)$(A)", {"A": "x"}, room=2) == "xx"
    for text, room in (("$(A)" * 300_000, MOST_TEXT), ("$(A)$(A)", 1), ("abc", 2)):
        with pytest.raises(InvalidError, match="more than"):
            expanded(text, {"A": "x" * 2**10 if room == MOST_TEXT else "x"}, room)
