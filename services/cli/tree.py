"""`agentctl tree | top`: what belongs to an agent, and what it uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from .columns import age, at, condition, pod_status, ready_of, restarts
from .objects import (
    ContextOption,
    EverywhereOption,
    KindArgument,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    SelectorOption,
    in_world,
    which_object,
)
from .output import FailedError, note, printable, show
from .session import StateDirOption
from .world import World

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_BYTES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "": 1}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("tree")(tree)
    app.command("top")(top)


def tree(
    ctx: typer.Context,
    kind: KindArgument = "",
    name: NameArgument = None,
    namespace: NamespaceOption = "default",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show what agents and fleets own: workloads, runs and pods, and how each is. Without a name: all of the
    namespace."""

    async def body(world: World) -> None:
        from libs.cluster import kinds

        owned: dict[str, list[dict[str, Any]]] = defaultdict(list)
        below = (
            kinds.DEPLOYMENT,
            kinds.STATEFUL_SET,
            kinds.REPLICA_SET,
            kinds.CRON_JOB,
            kinds.JOB,
            kinds.POD,
        )
        for each in below:
            for thing in (await world.list(each, namespace))[0]:
                for owner in thing["metadata"].get("ownerReferences", ()):
                    if owner.get("controller"):
                        owned[owner["uid"]].append({**thing, "kind": each.name})
        if kind:
            which, named = which_object(kind, name)
            roots = (
                [await world.get(which, namespace, named)]
                if named
                else (await world.list(which, namespace))[0]
            )
            roots = [{**root, "kind": which.name} for root in roots]
        else:
            roots = [
                {**root, "kind": each.name}
                for each in (kinds.AGENT, kinds.AGENT_FLEET)
                for root in (await world.list(each, namespace))[0]
            ]
        rows = [row for root in roots for row in _rows(root, owned, "", "")]
        if not rows:
            note(f"nothing found in namespace {namespace}")
        rows.insert(0, ("OBJECT", "STATE", "READY", "AGE"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows if len(rows) > 1 else ():
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            typer.echo(printable("  ".join(cells).rstrip()))

    in_world(ctx, state_dir, kubeconfig, context, body)


def _rows(
    thing: Mapping[str, Any], owned: Mapping[str, Sequence[dict[str, Any]]], lead: str, below: str
) -> list[tuple[str, str, str, str]]:
    found = [(f"{lead}{thing['kind'].lower()}/{thing['metadata']['name']}", *_state(dict(thing)))]
    children = sorted(owned.get(thing["metadata"]["uid"], ()), key=lambda each: str(each["metadata"]["name"]))
    if thing["kind"] == "Deployment":  # old ReplicaSets hold nothing
        children = [each for each in children if each["kind"] != "ReplicaSet" or at(each, "spec.replicas")]
    for child in children:
        last = child is children[-1]
        found += _rows(child, owned, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
    return found


def _state(thing: dict[str, Any]) -> tuple[str, str, str]:
    match thing["kind"]:
        case "Pod":
            again = f", {count} restart{'s' * (count > 1)}" if (count := restarts(thing)) else ""
            return pod_status(thing) + again, str(condition("Ready")(thing)), age(thing)
        case "Deployment" | "StatefulSet" | "ReplicaSet":
            return "", ready_of(thing), age(thing)
        case "Job":
            ended = next(
                (kind for kind in ("Complete", "Failed") if condition(kind)(thing) == "True"), "Running"
            )
            return ended, "", age(thing)
        case "CronJob":
            return f"at {at(thing, 'spec.schedule')}", "", age(thing)
        case _:
            return str(condition("Ready", "reason")(thing)), str(condition("Ready")(thing)), age(thing)


def top(
    ctx: typer.Context,
    namespace: NamespaceOption = "default",
    everywhere: EverywhereOption = False,
    selector: SelectorOption = "",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show what pods use: CPU (m: thousandths of a core) and memory (MiB; locally what is theirs alone).

    A Kubernetes needs metrics-server for it."""

    async def body(world: World) -> None:
        from libs.cluster.kinds import POD_METRICS
        from libs.errors import NotFoundError

        try:
            found, _ = await world.list(POD_METRICS, "" if everywhere else namespace, selector)
        except NotFoundError as error:
            raise FailedError(f"{world.name} has no metrics API: install metrics-server") from error
        rows = [
            (at(each, "metadata.namespace"), at(each, "metadata.name"), *_used(each["containers"]))
            for each in found
        ]
        rows.sort(key=lambda row: -float(row[2]))
        show(["NAMESPACE", "POD", ">CPU m", ">MEMORY MiB"], rows)

    in_world(ctx, state_dir, kubeconfig, context, body)


def _used(containers: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    cpu = sum(_quantity(each["usage"]["cpu"], _UNITS) for each in containers)
    memory = sum(_quantity(each["usage"]["memory"], _BYTES) for each in containers)
    return f"{cpu * 1000:.1f}", f"{memory / 2**20:.1f}"


def _quantity(text: str, units: Mapping[str, float]) -> float:
    number = text.rstrip("".join(units))
    return float(number) * units[text[len(number) :]]
