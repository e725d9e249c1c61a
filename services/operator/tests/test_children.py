"""Which steps lead from what is there to what is wanted."""

from __future__ import annotations

from typing import Any

from libs.cluster import Object, key_of
from services.operator.children import Settled, is_leftover, steps
from services.operator.plan import Action, Plan
from services.operator.plan.owned import owned

THING: Object = {
    "apiVersion": "agentctl.dev/v1alpha1",
    "kind": "Agent",
    "metadata": {"name": "x", "namespace": "n", "uid": "u-1"},
    "spec": {},
}


def _config(name: str, **data: str) -> dict[str, Any]:
    from libs.cluster.kinds import CONFIG_MAP

    return owned(THING, "x", CONFIG_MAP, name, {"data": data})


def _live(thing: dict[str, Any], revision: int = 1, **changes: Any) -> dict[str, Any]:
    uid = f"uid-{thing['metadata']['name']}"
    metadata = {**thing["metadata"], "uid": uid, "resourceVersion": str(revision)}
    return {**thing, "metadata": metadata, **changes}


def _actions(wanted, live, settled=None):
    there = {key_of(each): each for each in live}
    found = steps(THING, Plan(tuple(wanted)), live, lambda kind, *key: there.get(key), settled or Settled())
    return [(step.action, step.thing["metadata"]["name"]) for step in found]


def test_what_goes_comes_first_and_the_plan_keeps_its_order():
    wanted = [_config("b"), _config("a")]
    assert _actions(wanted, [_live(_config("old"))]) == [
        ("delete", "old"), (Action.CREATE, "b"), (Action.CREATE, "a"),
    ]  # fmt: skip


def test_a_difference_is_an_update_and_none_is_nothing():
    wanted = _config("a", text="1")
    assert _actions([wanted], [_live(wanted)]) == [(Action.NONE, "a")]
    assert _actions([wanted], [_live(wanted, data={"text": "2"})]) == [(Action.UPDATE, "a")]


def test_what_the_api_server_made_of_a_manifest_is_not_applied_again():
    wanted = _config("a", cpu="1000m")
    made = _live(wanted, data={"cpu": "1"})
    settled = Settled()
    assert _actions([wanted], [made], settled) == [(Action.UPDATE, "a")]
    settled.learn(wanted, made)
    assert _actions([wanted], [made], settled) == [(Action.NONE, "a")]
    newer = _live(wanted, 2, data={"cpu": "1"}, status={"seen": True})
    assert _actions([wanted], [newer], settled) == [(Action.NONE, "a")]


def test_but_a_change_by_hand_and_a_new_manifest_are_seen_all_the_same():
    wanted = _config("a", cpu="1000m")
    settled = Settled()
    settled.learn(wanted, _live(wanted, data={"cpu": "1"}))
    by_hand = _live(wanted, 2, data={"cpu": "2"})
    assert _actions([wanted], [by_hand], settled) == [(Action.UPDATE, "a")]
    other = _config("a", cpu="500m")
    assert _actions([other], [_live(wanted, data={"cpu": "1"})], settled) == [(Action.UPDATE, "a")]


def test_a_leftover_is_of_an_earlier_object_of_that_name():
    earlier = {**THING, "metadata": {**THING["metadata"], "uid": "u-0"}}
    assert is_leftover(_live(_config("a")), earlier)
    assert not is_leftover(_live(_config("a")), THING)
    assert not is_leftover({"metadata": {"name": "a", "namespace": "n"}}, THING)
