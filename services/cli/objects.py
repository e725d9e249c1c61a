"""`agentctl apply | get | delete`: objects of the local plane, or of a Kubernetes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import manifests
from .choices import ObjectFormat
from .listing import Lines, dump, list_of, print_things
from .output import Exit, FailedError, complain, note, one_line_errors
from .session import Settings, StateDirOption, TlsDirOption
from .world import Target, World, open_world

if TYPE_CHECKING:
    from libs.cluster.kinds import Kind

_PANEL = "Connection"
_CATEGORY = "agentctl"

NamespaceOption = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NAMESPACE", help="The namespace to look at.")
]
EverywhereOption = Annotated[bool, typer.Option("-A", "--all-namespaces", help="All namespaces.")]
SelectorOption = Annotated[str, typer.Option("-l", "--selector", metavar="LABELS", help="As kubectl's.")]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", rich_help_panel=_PANEL, show_default=False,
                 help="A Kubernetes, not the local plane. Default: KUBECONFIG, if no plane runs here."),
]  # fmt: skip
ContextOption = Annotated[
    str, typer.Option("--context", rich_help_panel=_PANEL, show_default=False, help="Of the kubeconfig.")
]
ObjectFormatOption = Annotated[ObjectFormat, typer.Option("-o", "--output", help="How to print.")]
KindArgument = Annotated[str, typer.Argument(help="Such as agents, fleets, pools, pods; or KIND/NAME.")]
NameArgument = Annotated[str | None, typer.Argument(help="Its name.", show_default=False)]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Manifests: YAML or JSON."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for body in (apply, get, delete):
        app.command(body.__name__)(body)


def in_world(
    ctx: typer.Context,
    state_dir: Path | None,
    kubeconfig: Path | None,
    context: str,
    body: Callable[[World], Awaitable[None]],
    tls_dir: Path | None = None,
) -> None:
    """Runs a command's body with the world that its options mean."""

    import asyncio

    async def run() -> None:
        async with open_world(settings_of(ctx, state_dir, tls_dir), Target(kubeconfig, context)) as world:
            await body(world)

    with one_line_errors():
        asyncio.run(run())


def settings_of(ctx: typer.Context, state_dir: Path | None, tls_dir: Path | None) -> Settings:
    """The settings of this run, with the folders that the command itself names."""
    settings = Settings.of(ctx, state_dir)
    return replace(settings, tls_dir=tls_dir or settings.tls_dir)


def apply(
    ctx: typer.Context,
    files: FilesOption = None,
    namespace: NamespaceOption = "default",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    tls_dir: TlsDirOption = None,
) -> None:  # fmt: skip
    """Make objects as manifests say (server-side apply).

    All are tried; if one is refused, the others are applied all the same, and the exit code is 1.

    Example: agentctl apply -f examples/summarize.yaml
    """

    async def body(world: World) -> None:
        from libs import errors

        coming: set[str] = set()  # namespaces that only a dry run has made
        homeless: dict[str, list[str]] = {}
        failures = 0
        for thing, kind in _wanted(files):
            metadata = thing["metadata"]
            is_homeless = kind.namespaced and not metadata.get("namespace")
            if is_homeless:
                metadata["namespace"] = namespace
            name = f"{kind.name.lower()}/{metadata['name']}"
            remark = " (dry run)" if dry_run else ""
            try:
                if metadata.get("namespace") in coming:
                    verb, remark = _judged(thing, kind)
                else:
                    _, verb = await world.apply(thing, dry_run=dry_run)
            except (errors.UnavailableError, errors.UnauthenticatedError):
                raise  # the others would fare no better
            except errors.MeshError as error:
                failures += 1
                if is_homeless and isinstance(error, errors.NotFoundError):
                    homeless.setdefault(str(error), []).append(name)
                else:
                    complain(f"{name}: {error}")
            else:
                typer.echo(f"{name} {verb}{remark}")
                if dry_run and verb == "created" and kind.name == "Namespace":
                    coming.add(metadata["name"])
        for why, names in homeless.items():
            mend = "say another by -n NAMESPACE or metadata.namespace"
            complain(f"{', '.join(names)}: {why} ({mend})")
        if failures:
            raise typer.Exit(Exit.FAILED)

    in_world(ctx, state_dir, kubeconfig, context, body, tls_dir)


def get(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    namespace: NamespaceOption = "default",
    everywhere: EverywhereOption = False,
    selector: SelectorOption = "",
    format_: ObjectFormatOption = ObjectFormat.TABLE,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Then every change.")] = False,
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    tls_dir: TlsDirOption = None,
) -> None:  # fmt: skip
    """Show objects. The kind `agentctl` means all that people declare: agents, fleets, pools, server sets.

    \b
    Examples:
      agentctl get agentctl -n demo
      agentctl get fleets -A
      agentctl get pods -n demo -w
      agentctl get fleet/summarize -n demo -o yaml
    """

    async def body(world: World) -> None:
        if kind.lower() == _CATEGORY:
            if name or watch:
                raise FailedError(f"{_CATEGORY} is four kinds: no name and no -w go with it", Exit.USAGE)
            await _get_declared(world, "" if everywhere else namespace, selector, format_)
            return
        which, named = which_object(kind, name)
        where = namespace if which.namespaced and not everywhere else ""
        if named:
            things = [await world.get(which, where, named)]
            revision = things[0]["metadata"]["resourceVersion"]
        else:
            things, revision = await world.list(which, where, selector)
        print_things(which, things, format_, namespaces=everywhere and which.namespaced, single=bool(named))
        if watch:
            lines = Lines(which, everywhere and which.namespaced, wide=format_ is ObjectFormat.WIDE)
            async for verb, thing in world.watch(which, where, selector, revision):
                if not named or thing["metadata"]["name"] == named:
                    if format_ in (ObjectFormat.TABLE, ObjectFormat.WIDE):
                        lines.show(verb, thing)
                    else:
                        print_things(which, [thing], format_, namespaces=False, single=True)

    in_world(ctx, state_dir, kubeconfig, context, body, tls_dir)


def delete(
    ctx: typer.Context,
    kind: Annotated[str | None, typer.Argument(help="Such as fleet, or fleet/NAME.")] = None,
    name: NameArgument = None,
    files: FilesOption = None,
    namespace: NamespaceOption = "default",
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    tls_dir: TlsDirOption = None,
) -> None:  # fmt: skip
    """Delete objects and what they own.

    \b
    Examples:
      agentctl delete fleet summarize -n demo
      agentctl delete -f examples/summarize.yaml
    """

    async def body(world: World) -> None:
        from libs.errors import NotFoundError

        if files and kind:
            raise FailedError("name an object or files, not both", Exit.USAGE)
        if files:
            for thing, which in reversed(_wanted(files)):
                metadata = thing["metadata"]
                where = metadata.get("namespace", namespace) if which.namespaced else ""
                try:
                    await world.delete(which, where, metadata["name"])
                except NotFoundError:
                    note(f"{which.name.lower()}/{metadata['name']} is not there")
                else:
                    typer.echo(f"{which.name.lower()}/{metadata['name']} deleted")
            return
        which, named = which_object(kind or "", name)
        if not named:
            raise FailedError("which one? name it: KIND NAME, KIND/NAME or -f FILE", Exit.USAGE)
        await world.delete(which, namespace if which.namespaced else "", named)
        typer.echo(f"{which.name.lower()}/{named} deleted")

    in_world(ctx, state_dir, kubeconfig, context, body, tls_dir)


def which_object(word: str, name: str | None) -> tuple[Kind, str]:
    """The kind and name meant by `KIND NAME` or `KIND/NAME`."""
    from libs.cluster.kinds import kind_named

    kind, _, behind = word.partition("/")
    try:
        return kind_named(kind), name or behind
    except KeyError:
        mend = "try agents, fleets, pools, pods"
        raise FailedError(f"{kind!r} is no kind of object here ({mend})", Exit.USAGE) from None


def _wanted(files: Sequence[Path] | None) -> list[tuple[dict[str, Any], Kind]]:
    """The objects of the files and their kinds. FailedError before anything is done, if one has none."""
    from libs.cluster.kinds import kind_of

    if not files:
        raise FailedError("-f FILE is missing", Exit.USAGE)
    found = []
    for thing in manifests.read(files):
        try:
            found.append((thing, kind_of(thing["apiVersion"], thing["kind"])))
        except KeyError:
            what = f"{thing['apiVersion']} {thing['kind']}"
            raise FailedError(f"{what} is no kind that agentctl applies", Exit.USAGE) from None
    return found


def _judged(thing: dict[str, Any], kind: Kind) -> tuple[str, str]:
    """What a dry run says of an object whose namespace is not there yet. InvalidError by its kind's rules."""
    from libs.cluster.kinds import OURS
    from libs.cluster.local.schema import Validator

    if kind in OURS:
        Validator().validated(thing)
    namespace = thing["metadata"]["namespace"]
    return "created", f" (dry run; namespace {namespace} is not there yet: not checked further)"


async def _get_declared(world: World, namespace: str, selector: str, format_: ObjectFormat) -> None:
    """All that people declare, kind by kind."""
    from libs.cluster.kinds import OURS

    found = {kind: (await world.list(kind, namespace, selector))[0] for kind in OURS}
    if format_ in (ObjectFormat.JSON, ObjectFormat.YAML):
        dump(list_of(thing for things in found.values() for thing in things), format_)
        return
    tables = [(kind, things) for kind, things in found.items() if things]
    for kind, things in tables:
        if (kind, things) != tables[0] and format_ is not ObjectFormat.NAME:
            typer.echo()
        print_things(
            kind, things, format_, namespaces=not namespace, single=False, prefix=f"{kind.name.lower()}/"
        )
    if not tables:
        note("nothing found")
