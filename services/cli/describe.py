"""`agentctl describe`: all of one object, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from .columns import at, since
from .management import Subject, Way, open_management
from .objects import (
    ContextOption,
    KindArgument,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    in_world,
    which_object,
)
from .output import Exit, FailedError, fields, one_line, show
from .session import Settings, StateDirOption
from .world import World

if TYPE_CHECKING:
    from agentctl.management.v1 import management_service_pb2 as pb
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
    """Say all of one object: what is wanted, its conditions, its runs, its events.

    Of an agent that runs also how its runs have ended, in its own words.
    """
    from libs.cluster.kinds import AGENT

    async def body(world: World) -> None:
        which, named = which_object(kind, name)
        if not named:
            raise FailedError("which one? name it: KIND NAME or KIND/NAME", Exit.USAGE)
        thing = await world.get(which, namespace if which.namespaced else "", named)
        await _describe(world, which, thing)
        if which == AGENT:
            await _tell_pods(Settings.of(ctx, state_dir), Way("", kubeconfig, context), namespace, named)

    in_world(ctx, state_dir, kubeconfig, context, body)


async def _describe(world: World, kind: Kind, thing: dict[str, Any]) -> None:
    import yaml

    from libs.cluster.kinds import AGENT_FLEET, EVENT

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
    if kind == AGENT_FLEET:
        typer.echo("\nScaling:")
        fields([(f"  {name}", value) for name, value in _scaling(thing)])
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


def _scaling(fleet: dict[str, Any]) -> list[tuple[str, object]]:
    """How many agents, between which bounds, and who says so."""
    scaling, fixed = at(fleet, "spec.scaling") or {}, at(fleet, "spec.replicas")
    least, most = scaling.get("minReplicas", 0), scaling.get("maxReplicas", 10)
    agents = f"{at(fleet, 'status.replicas') or 0}, {at(fleet, 'status.readyReplicas') or 0} ready"
    is_sharded = scaling.get("mode") == "shard"
    least = max(1, least) if is_sharded else least
    rows: list[tuple[str, object]] = [("Agents", agents), ("Bounds", f"{least} to {most}")]
    if is_sharded:
        count, epoch = at(fleet, "status.shards.count"), at(fleet, "status.shards.epoch")
        rows += [
            ("Wanted", fixed or least),
            ("Shards", count and f"{count}, epoch {epoch}"),
        ]
    else:
        per_agent = scaling.get("target") or at(fleet, "spec.work.slots") or 4
        age = scaling.get("targetAge")
        target = f"{per_agent} items an agent" + (f", or the oldest waits {age} an agent" if age else "")
        wanted = "as the demand has it" if fixed == "" else f"{fixed}, fixed by hand (scale --auto ends that)"
        rows += [("Wanted", wanted), ("Target", target)]
    for each in at(fleet, "status.conditions") or ():
        if each.get("type") in ("Scaled", "Sharded"):
            said = each.get("message") or each.get("status", "")
            rows.append((each["type"], f"{each.get('reason', '')}: {said}"))
    return rows


async def _tell_pods(settings: Settings, way: Way, namespace: str, name: str) -> None:
    """What its agents say of themselves; why not, if nobody can be asked."""
    try:
        async with open_management(settings, way) as management:
            found = await management.status(Subject(namespace, name, is_fleet=False))
    except FailedError as error:
        typer.echo(f"\nAgents could not be asked: {one_line(str(error))}")
        return
    running = [_row(pod) for pod in found.pods if pod.phase == "Running"]
    if running:
        typer.echo("\nAgents:")
        show(["POD", "READY", ">RUNS", "ENDED", ">TOKENS", "MESSAGE"], running)


def _row(pod: pb.PodStatus) -> Sequence[object]:
    if not pod.HasField("status"):
        return [pod.pod, "", "", "", "", pod.error]
    said = pod.status
    ended = sorted(said.ended_runs.items(), key=lambda each: (-each[1], each[0]))
    return [
        pod.pod,
        "yes" if said.ready else "no",
        len(said.runs),
        ", ".join(f"{count} {status}" for status, count in ended),
        said.usage.input_tokens + said.usage.output_tokens,
        said.not_ready_reason,
    ]
