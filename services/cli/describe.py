"""`agentctl describe`: all of one object, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from .columns import at, since
from .objects import (
    ContextOption,
    KindArgument,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    in_world,
    which_object,
)
from .output import Exit, FailedError, fields, show
from .session import StateDirOption
from .world import World

if TYPE_CHECKING:
    from libs.cluster.kinds import Kind


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("describe")(describe)


def describe(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    namespace: NamespaceOption = "default",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Say all of one object: what is wanted, its conditions, its runs, its events."""

    async def body(world: World) -> None:
        which, named = which_object(kind, name)
        if not named:
            raise FailedError("which one? name it: KIND NAME or KIND/NAME", Exit.USAGE)
        thing = await world.get(which, namespace if which.namespaced else "", named)
        await _describe(world, which, thing)

    in_world(ctx, state_dir, kubeconfig, context, body)


async def _describe(world: World, kind: Kind, thing: dict[str, Any]) -> None:
    import yaml

    from libs.cluster.kinds import EVENT

    metadata = thing["metadata"]
    labels = ", ".join(f"{key}={value}" for key, value in (metadata.get("labels") or {}).items())
    fields(
        [
            ("Name", metadata["name"]),
            ("Namespace", metadata.get("namespace", "")),
            ("Kind", f"{kind.name} ({kind.api_version})"),
            ("Labels", labels),
            ("Age", since(metadata.get("creationTimestamp", ""))),
            ("Generation", metadata.get("generation", "")),
            ("Observed", at(thing, "status.observedGeneration")),
        ]
    )  # fmt: skip
    for part in ("spec", "data"):
        if thing.get(part):
            typer.echo(f"\n{part.capitalize()}:")
            body = yaml.safe_dump(thing[part], allow_unicode=True).rstrip()
            typer.echo("\n".join(f"  {line}" for line in body.splitlines()))
    status = dict(thing.get("status") or {})
    if found := status.pop("conditions", None):
        typer.echo("\nConditions:")
        show(
            ["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"],
            ([each.get("type", ""), each.get("status", ""), each.get("reason", ""),
              since(each.get("lastTransitionTime", "")), each.get("message", "")] for each in found),
        )  # fmt: skip
    if status:
        typer.echo("\nStatus:")
        body = yaml.safe_dump(status, allow_unicode=True).rstrip()
        typer.echo("\n".join(f"  {line}" for line in body.splitlines()))
    events, _ = await world.list(EVENT, metadata.get("namespace", "") or "default")
    mine = [each for each in events if at(each, "regarding.uid") == metadata.get("uid")]
    if mine:
        typer.echo("\nEvents:")
        mine.sort(key=lambda each: str(each.get("eventTime") or at(each, "metadata.creationTimestamp")))
        show(
            ["AGO", "TYPE", "REASON", "NOTE"],
            ([since(str(each.get("eventTime") or at(each, "metadata.creationTimestamp"))),
              each.get("type", ""), each.get("reason", ""), each.get("note", "")] for each in mine[-20:]),
        )  # fmt: skip
