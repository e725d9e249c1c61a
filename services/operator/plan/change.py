"""What the plan asks of what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from libs.cluster import Object, controller_of, key_of
from libs.cluster.kinds import JOB

from .context import Problem
from .owned import SPEC_HASH, TEMPLATE_HASH

_LIST_KEYS = ("mountPath", "name")


class Action(StrEnum):
    """As RenderAction of the API has them."""

    CREATE = "create"
    UPDATE = "update"
    RECREATE = "recreate"  # delete it, wait until it is gone, create it
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Change:
    """What to do with one object of a plan, and why."""

    action: Action
    reason: str


def change(thing: Object, wanted: Object, live: Object | None) -> Change:
    """What to do for `wanted`, an object of thing's plan, given the live one of its kind and name."""
    is_job = wanted["kind"] == JOB.name
    going = bool(live and live["metadata"].get("deletionTimestamp"))
    if is_job and (live is None or going) and has_run(thing):
        return Change(Action.NONE, "its run has ended and its Job is gone; a new trigger runs it again")
    if live is None:
        return Change(Action.CREATE, "it is not there")
    if going:
        return Change(Action.RECREATE, "it is being deleted")
    if is_job:
        return _of_job(wanted, live)
    if _annotation(live, TEMPLATE_HASH) != _annotation(wanted, TEMPLATE_HASH):
        return Change(Action.UPDATE, "what it is made from has changed")
    if not _holds(wanted, live):
        return Change(Action.UPDATE, "somebody else changed it")
    return Change(Action.NONE, "it is as it should be")


def conflict(live: Object, thing: Object) -> Problem | None:
    """Why a live object with a name of the plan may not be touched: another owns it. None if it is ours."""
    owner = controller_of(live)
    if owner is not None and owner["uid"] == thing["metadata"].get("uid"):
        return None
    whose = f"belongs to {owner['kind']} {owner['name']}" if owner else "was made by somebody else"
    name = key_of(live)[1]
    remedy = f"delete it, or give this {thing['kind']} another name"
    return Problem("NameConflict", f"{live['kind']} {name} is there already and {whose}; {remedy}")


def ended(job: Object) -> str:
    """Complete or Failed, as the Job's conditions say; empty while it runs."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {each["type"] for each in conditions if each["status"] == "True"}
    return "Complete" if "Complete" in true else "Failed" if "Failed" in true else ""


def has_run(thing: Object) -> bool:
    """Whether this generation of a once or workflow agent was run, by its own status. A Job may expire
    (runs.keepFor) before its end was seen: with that set, one that was seen at all is not run again."""
    said = thing.get("status") or {}
    run = said.get("lastRun")
    if not run or said.get("observedGeneration") != thing["metadata"].get("generation"):
        return False
    expires = bool((thing["spec"].get("runs") or {}).get("keepFor"))
    return expires or run.get("outcome") in ("Succeeded", "Failed")


def _of_job(wanted: Object, live: Object) -> Change:
    """A Job's template cannot change. If the agent itself changed, it runs again. If only its pool or the
    operator's settings did, a run that ended is not repeated, and one at work keeps what it began with."""
    if _annotation(live, SPEC_HASH) != _annotation(wanted, SPEC_HASH):
        return Change(Action.RECREATE, "the agent has changed: it runs again")
    if ended(live):
        return Change(Action.NONE, "its run has ended; a new trigger runs it again")
    at_work = bool((live.get("status") or {}).get("ready"))
    if not at_work and _annotation(live, TEMPLATE_HASH) != _annotation(wanted, TEMPLATE_HASH):
        return Change(Action.RECREATE, "what it is made from has changed, and no pod of it is at work")
    return Change(Action.NONE, "its run is under way")


def _annotation(thing: Object, key: str) -> str:
    return str((thing["metadata"].get("annotations") or {}).get(key, ""))


def _holds(wanted: Any, live: Any) -> bool:
    """Whether all that we say is so. What others add does not count, nor an empty value that is not kept."""
    if isinstance(wanted, Mapping):
        found = live if isinstance(live, Mapping) else {}
        return all(_holds(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        there = live if isinstance(live, list) else []
        for key in _LIST_KEYS:
            if wanted and all(isinstance(each, Mapping) and key in each for each in wanted):
                named = {each.get(key): each for each in there if isinstance(each, Mapping)}
                return all(_holds(each, named.get(each[key])) for each in wanted)
        return len(there) == len(wanted) and all(map(_holds, wanted, there))
    return bool(wanted == live) or (not wanted and live is None)
