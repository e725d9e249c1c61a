"""`agentctl logs`: what pods printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from .objects import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    in_world,
    which_object,
)
from .output import Exit, FailedError
from .session import StateDirOption
from .world import World


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("logs")(logs)


def logs(
    ctx: typer.Context,
    pod: Annotated[str, typer.Argument(help="A pod, or agent/NAME, fleet/NAME: all of its pods.")],
    namespace: NamespaceOption = "default",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as more comes.")] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only so many of the last lines.")] = None,
    previous: Annotated[bool, typer.Option("--previous", help="Before the last restart.")] = False,
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Print what a pod, or all pods of an agent, printed."""

    async def body(world: World) -> None:
        import asyncio

        pods = await _pods(world, namespace, pod)
        readers = [asyncio.create_task(one(world, each, len(pods) > 1)) for each in pods]
        try:
            for reader in asyncio.as_completed(readers):
                await reader
        finally:
            for each in readers:
                each.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def one(world: World, name: str, prefix: bool) -> None:
        rest = b""
        async for data in world.logs(namespace, name, follow=follow, tail=tail, previous=previous):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _write(name, line, prefix)
        if rest:
            _write(name, rest, prefix)

    in_world(ctx, state_dir, kubeconfig, context, body)


def _write(pod: str, line: bytes, prefix: bool) -> None:
    text = line.decode(errors="replace")
    typer.echo(f"{pod}  {text}" if prefix else text)


async def _pods(world: World, namespace: str, word: str) -> Sequence[str]:
    """The pods that a word means."""
    from libs.cluster.kinds import POD

    first, _, name = word.partition("/")
    if not name or first.lower() in ("pod", "pods", "po"):
        return [name or word]
    which_object(first, name)
    found, _ = await world.list(POD, namespace, f"agentctl.dev/agent={name}")
    if not found:
        raise FailedError(f"{word} has no pods in {namespace}", Exit.NOT_FOUND)
    return [each["metadata"]["name"] for each in found]
