"""`agentctl wait`: until an object is as it was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import durations
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

if TYPE_CHECKING:
    from libs.cluster.kinds import Kind


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("wait")(wait)


def wait(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    namespace: NamespaceOption = "default",
    condition: Annotated[
        str, typer.Option("--for", metavar="CONDITION", help="Which condition has to be true.")
    ] = "Ready",
    timeout: Annotated[
        timedelta, typer.Option(parser=durations.option, metavar="DURATION", help="How long at most.")
    ] = "60s",  # type: ignore[assignment]  # typer parses it
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Wait until an object's condition is true of its newest generation.

    Example: agentctl wait fleet/summarize -n demo
    """

    async def body(world: World) -> None:
        import asyncio

        which, named = which_object(kind, name)
        if not named:
            raise FailedError("which one? name it: KIND NAME or KIND/NAME", Exit.USAGE)
        last, code = "it is not there", Exit.NOT_FOUND
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                async for thing in _states(world, which, namespace if which.namespaced else "", named):
                    found, code = _condition(thing, condition), Exit.FAILED
                    if found.get("status") == "True":
                        typer.echo(f"{which.name.lower()}/{named} {condition}")
                        return
                    last = f"{found.get('reason', '')}: {found.get('message', '')}".strip(": ")
                    last = last or f"nothing is said of {condition} of this generation yet"
        except TimeoutError:
            raise FailedError(f"{which.name.lower()}/{named} is not {condition}: {last}", code) from None

    in_world(ctx, state_dir, kubeconfig, context, body)


async def _states(world: World, kind: Kind, namespace: str, name: str) -> AsyncIterator[dict[str, Any]]:
    """The object as it is, and after every change."""
    things, revision = await world.list(kind, namespace)
    for thing in things:
        if thing["metadata"]["name"] == name:
            yield thing
    while True:
        async for _, thing in world.watch(kind, namespace, "", revision):
            revision = thing["metadata"]["resourceVersion"]
            if thing["metadata"]["name"] == name:
                yield thing


def _condition(thing: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition that speaks of the newest generation; empty if there is none."""
    generation = thing["metadata"].get("generation", 0)
    seen = at(thing, "status.observedGeneration") or generation  # of kinds whose conditions say none
    conditions: list[dict[str, Any]] = at(thing, "status.conditions") or []
    current = (each for each in conditions if each.get("observedGeneration", seen) == generation)
    return next((each for each in current if each.get("type") == kind), {})
