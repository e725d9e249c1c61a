"""`agentctl scale`: how many agents a fleet has, or who says so."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .columns import at
from .objects import (
    ContextOption,
    KindArgument,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    in_world,
    which_object,
)
from .output import Exit, FailedError
from .session import StateDirOption
from .world import World

_MANAGER = "agentctl-scale"  # so that an `apply` of a manifest without replicas leaves them


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(scale)


def scale(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", metavar="N", help="So many, whatever there is to do.")
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="As the manifest has it again.")] = False,
    namespace: NamespaceOption = "default",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Fix how many agents a fleet has, within its scaling.minReplicas and scaling.maxReplicas, or end that:
    then the demand says how many. In mode shard it is the number of shards, minReplicas (at least 1) without.

    \b
    Examples:
      agentctl scale fleet/summarize -n demo --replicas 5
      agentctl scale fleet/summarize -n demo --auto
    """

    async def body(world: World) -> None:
        from libs.cluster.kinds import AGENT_FLEET

        which, named = which_object(kind, name)
        if which != AGENT_FLEET or not named:
            raise FailedError("only fleets have replicas: scale fleet/NAME --replicas N", Exit.USAGE)
        if auto == (replicas is not None):
            raise FailedError("say either --replicas N or --auto", Exit.USAGE)
        await world.get(which, namespace, named)  # an apply would try to make it
        wanted = {
            "apiVersion": which.api_version,
            "kind": which.name,
            "metadata": {"name": named, "namespace": namespace},
            "spec": {} if auto else {"replicas": replicas},  # what is not said any more goes
        }
        after, _ = await world.apply(wanted, manager=_MANAGER)
        it = f"{which.name.lower()}/{named}"
        if auto and (fixed := at(after, "spec.replicas")) != "":
            raise FailedError(f"{it} keeps its {fixed} agents: {_said_elsewhere(after)}")
        typer.echo(f"{it} {_left(after) if auto else 'scaled'}")

    in_world(ctx, state_dir, kubeconfig, context, body)


def _left(fleet: dict[str, Any]) -> str:
    """Who says how many, now that nobody has fixed it."""
    if at(fleet, "spec.scaling.mode") != "shard":
        return "is left to the demand"
    return f"goes to its minReplicas: shards {max(1, at(fleet, 'spec.scaling.minReplicas') or 0)}"


def _said_elsewhere(fleet: dict[str, Any]) -> str:
    """Who else has said spec.replicas, and so has to take it back."""
    managers = [
        str(each.get("manager"))
        for each in at(fleet, "metadata.managedFields") or ()
        if "f:replicas" in at(each, "fieldsV1.f:spec")
    ]
    who = f" ({', '.join(managers)})" if managers else ""
    return (
        f"somebody else has set spec.replicas too{who}; take it out of the manifest, or out by kubectl edit"
    )
