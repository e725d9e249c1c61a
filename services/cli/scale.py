"""`agentctl scale`: how many agents a fleet has."""

from __future__ import annotations

from typing import Annotated

import typer

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
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="How many agents.")] = ...,  # type: ignore[assignment]  # it is required
    namespace: NamespaceOption = "default",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:  # fmt: skip
    """Say how many agents a fleet has, within its scaling.minReplicas and scaling.maxReplicas.

    Example: agentctl scale fleet/summarize -n demo --replicas 5
    """

    async def body(world: World) -> None:
        from libs.cluster.kinds import AGENT_FLEET

        which, named = which_object(kind, name)
        if which != AGENT_FLEET or not named:
            raise FailedError("only fleets have replicas: scale fleet/NAME --replicas N", Exit.USAGE)
        await world.get(which, namespace, named)  # an apply would try to make it
        wanted = {
            "apiVersion": which.api_version,
            "kind": which.name,
            "metadata": {"name": named, "namespace": namespace},
            "spec": {"replicas": replicas},
        }
        await world.apply(wanted, manager=_MANAGER)
        typer.echo(f"{which.name.lower()}/{named} scaled")

    in_world(ctx, state_dir, kubeconfig, context, body)
