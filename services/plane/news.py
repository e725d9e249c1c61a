"""What happens, in lines for the person in front of the terminal: one for what matters, none for the rest."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import AGENT, AGENT_FLEET, POD
from libs.contract.report import parse

Say = Callable[[str, str], None]
"""`say(name, event)`: a line."""

_LONGEST_LINE = 500
_STARTING = ("", "ContainerCreating", "CrashLoopBackOff")  # the last: its end has been told


@asynccontextmanager
async def told(cluster: Cluster, say: Say) -> AsyncIterator[None]:
    """Tells what becomes of agents, fleets and their pods while the block runs."""
    informers = [Informer(cluster, kind) for kind in (AGENT, AGENT_FLEET, POD)]
    for informer in informers:
        informer.subscribe(partial(_tell, say, informer.kind.name))
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell(say: Say, kind: str, old: Object | None, new: Object | None) -> None:
    if event := (of_pod if kind == POD.name else of_agent)(old, new):
        metadata = (new or old or {})["metadata"]
        say(f"{metadata['namespace']}/{metadata['name']}", f"{kind.lower()} {_line(event)}")


def _line(text: str) -> str:
    """What a terminal shows as it is: agents write some of it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split())[:_LONGEST_LINE]


def of_agent(old: Object | None, new: Object | None) -> str:
    """What to tell of an agent or a fleet that was `old` and is `new`; "" if nothing. What it was when the
    plane started is no news."""
    if new is None:
        return "deleted"
    before, after = _ready(old), _ready(new)
    if old is None or not after or _headline(before) == _headline(after):
        return ""
    if after["status"] == "True":
        return "ready" + (f": {after['message']}" if after.get("message") else "")
    return f"not ready: {after['reason']}" + (f": {after['message']}" if after.get("message") else "")


def of_pod(old: Object | None, new: Object | None) -> str:
    """What to tell of a pod that was `old` and is `new`; "" if nothing."""
    if new is None:
        return "gone"
    if old is None or new["metadata"].get("deletionTimestamp"):
        return ""
    if (end := _end(new)) and end.get("finishedAt") != _end(old).get("finishedAt"):
        return _how(end) + ("; it starts again" if _starts_again(new, end) else "")
    if _phase(new) == "Failed" and _phase(old) != "Failed":
        status = new["status"]
        return ": ".join(filter(None, ("failed", status.get("reason"), status.get("message"))))
    if (waiting := _waiting(new)) and waiting != _waiting(old):
        return f"waits: {waiting}"
    is_ready = _ready(new).get("status") == "True"
    return "ready" if is_ready and _ready(old).get("status") != "True" else ""


def _ready(thing: Object | None) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = ((thing or {}).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "Ready"), {})


def _headline(condition: dict[str, Any]) -> tuple[object, object]:
    return condition.get("status"), condition.get("reason")


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _containers(pod: Object) -> list[dict[str, Any]]:
    status = pod.get("status") or {}
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _end(pod: Object) -> dict[str, Any]:
    """How a container of it ended last; one beside the agent only if it failed."""
    beside = (pod.get("status") or {}).get("initContainerStatuses", ())
    ends = [
        end
        for each in _containers(pod)
        for state in ("lastState", "state")
        if (end := each.get(state, {}).get("terminated")) and (each not in beside or end.get("exitCode"))
    ]
    return max(ends, key=lambda end: str(end.get("finishedAt")), default={})


def _starts_again(pod: Object, end: dict[str, Any]) -> bool:
    policy = (pod.get("spec") or {}).get("restartPolicy", "Always")
    wanted = policy == "Always" or (policy == "OnFailure" and end.get("exitCode") != 0)
    return wanted and _phase(pod) not in ("Succeeded", "Failed")


def _how(end: dict[str, Any]) -> str:
    message = end.get("message", "")
    if report := parse(message):
        why = ": ".join(filter(None, (report.status, report.error)))
        return f"ended with exit code {end.get('exitCode')}: {why}" if end.get("exitCode") else "is done"
    if message:
        return f"ended: {message}"
    if number := end.get("signal"):
        with suppress(ValueError):
            return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit code {end.get('exitCode')}" if end.get("exitCode") else "is done"


def _waiting(pod: Object) -> str:
    for each in _containers(pod):
        waiting = each.get("state", {}).get("waiting", {})
        if waiting.get("reason", "") not in _STARTING:
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    return ""
