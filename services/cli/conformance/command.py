"""The command: which agent, which cases, which form. Everything that is slow to load waits until it runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libs.state import ADMINISTRATOR

from .. import durations
from ..output import Exit, FailedError, note, one_line_errors
from ..session import Settings, StateDirOption, TlsDirOption, check_certificate

if TYPE_CHECKING:
    from libs.identity import Identity, Principal

    from .case import Case, Group, Outcome
    from .launching import Launcher
    from .world import World


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("conformance")(conformance)


def conformance(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[HOST:PORT]", help="AgentService of an agent that runs.", show_default=False),
    ] = None,
    agent_id: Annotated[
        str | None,
        typer.Option(
            metavar="NS/AGENT/POD/UID",
            show_default=False,
            help="With HOST:PORT: the pod that has to answer there, or its SPIFFE id.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="Start this program, with the contract's environment.", show_default=False),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="The same, in a container by docker or podman.", show_default=False)
    ] = None,
    verbs: Annotated[
        bool, typer.Option("--verbs", help="With HOST:PORT: try what changes the agent, and reverse it.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID-PREFIX", help="Only cases whose id begins so; may be repeated.", show_default=False
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only say what would be tried.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit's XML too.", show_default=False)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    timeout: Annotated[
        timedelta, typer.Option(parser=durations.option, metavar="DURATION", help="For all cases together.")
    ] = "15m",  # type: ignore[assignment]  # typer parses it
    tls_dir: TlsDirOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Try an agent, whoever wrote it, against the agent contract.

    With --command or --image everything that the agent needs is made for it: an authority, a scripted model
    (no model answers), a scripted tool server, coordination. It is started many times, and killed. An agent
    that runs (HOST:PORT) is only looked at, unless --verbs allows more; with a certificate that may call it.

    What an agent's manifest does not offer is skipped, as is a mode that it refuses with exit code 2.

    \b
    Examples:
      agentctl conformance --command agentctl-agent
      agentctl conformance --image registry.example.com/agent:1 --junit report.xml
      agentctl conformance 10.0.0.7:7414 --agent-id demo/writer/writer-0/4a0c... --tls-dir ./gateway

    Exit codes: 0 every case passed or was skipped, 1 one failed, 2 usage, 4 denied, 5 unavailable.
    """
    with one_line_errors():
        from . import report
        from .cases import GROUPS
        from .running import chosen

        work = chosen(GROUPS, only or ())
        if not work:
            raise FailedError(f"no case begins with {', '.join(only or ())} (see --list)", Exit.USAGE)
        if list_:
            report.listing(case for _, cases in work for case in cases)
            return
        if sum(each is not None for each in (address, command, image)) != 1:
            raise FailedError("say one of HOST:PORT, --command and --image", Exit.USAGE)
        if address is None and (agent_id or verbs):
            raise FailedError("--agent-id and --verbs go with HOST:PORT", Exit.USAGE)
        settings = Settings.of(ctx, state_dir)
        if junit is not None:
            _check_writable(junit)
        with _scratch() as folder:
            world = _world(
                settings, folder, address, agent_id, verbs, command, image, tls_dir or settings.tls_dir
            )
            outcomes = _run(world, work, timeout.total_seconds())
        if junit is not None:
            report.junit(outcomes, junit)
        (report.json if json_ else report.table)(outcomes)
    if any(each.verdict == "FAIL" for each in outcomes):
        raise typer.Exit(Exit.FAILED)


def _check_writable(file: Path) -> None:
    """Before anything is tried: else minutes are for nothing."""
    try:
        file.open("ab").close()
    except OSError as error:
        raise FailedError(f"--junit: {file}: {error.strerror}", Exit.USAGE) from error


def _run(world: World, work: list[tuple[Group, list[Case]]], seconds: float) -> list[Outcome]:
    import asyncio
    import signal
    import sys

    from libs.errors import MeshError

    from .. import session
    from .running import run

    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if sys.stderr.isatty():  # else nobody waits for it
            note(f"{outcome.verdict}  {outcome.case.id}  {outcome.message}")

    async def all_of_it() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # what runs is ended first
        async with world:
            if world.running is not None:
                async with world.standing():  # whoever cannot be reached at all has failed no case
                    pass
            await run(world, work, tell, seconds=seconds)

    try:
        asyncio.run(all_of_it())
    except asyncio.CancelledError as error:
        raise typer.Exit(128 + signal.SIGTERM) from error
    except MeshError as error:
        raise session.failed(error, world.running.address if world.running else "the agent") from error
    return outcomes


def _world(
    settings: Settings,
    folder: Path,
    address: str | None,
    agent_id: str | None,
    verbs: bool,
    command: str | None,
    image: str | None,
    tls_dir: Path | None,
) -> World:
    from .world import World

    if address is None:
        return World(folder, settings.environment, launcher=_launcher(folder, command, image))
    from libs.identity import Identity

    from .identities import Only
    from .subject import Subject

    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise FailedError(f"{address!r} is not HOST:PORT", Exit.USAGE)
    tls_dir = tls_dir or settings.state.identity(ADMINISTRATOR)
    if not (tls_dir / "tls.crt").is_file():
        raise FailedError(f"{tls_dir} holds no certificate: name a folder by --tls-dir", Exit.DENIED)
    check_certificate(tls_dir)
    running = Subject(
        address=address,
        server=_principal(agent_id, address, Identity(tls_dir)),
        identities=Only(Identity(tls_dir)),
        metrics_host=host,
        may_change=verbs,
    )
    return World(folder, settings.environment, running=running)


def _principal(agent_id: str | None, address: str, identity: Identity) -> Principal:
    """Who has to answer there. If nobody says, it is whose certificate is served, if by our authority."""
    from libs import pki
    from libs.identity import Principal

    full = agent_id if agent_id is not None else _served_id(address, identity)
    if "://" not in full:
        parts = full.split("/")
        if len(parts) != 4:
            raise FailedError(f"--agent-id: {agent_id!r} is not NS/AGENT/POD/UID", Exit.USAGE)
        namespace, agent, pod, uid = parts
        full = f"spiffe://{pki.own(identity).domain}/ns/{namespace}/agent/{agent}/pod/{pod}/{uid}"
    try:
        principal = Principal.parse(full)
        _ = principal.dns_name
    except ValueError as error:
        raise FailedError(f"--agent-id: {error}", Exit.USAGE) from error
    if principal.role != "agent":
        raise FailedError(f"{address} is served by {principal.id}, which is no agent", Exit.USAGE)
    return principal


def _served_id(address: str, identity: Identity) -> str:
    import asyncio

    from cryptography import x509

    from .case import BrokenError
    from .subject import served_certificate

    try:
        certificate = asyncio.run(served_certificate(address, identity))
    except BrokenError as error:
        raise FailedError(str(error), Exit.UNAVAILABLE) from error
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (found,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError) as error:
        raise FailedError(f"{address}: its certificate has no SPIFFE id", Exit.DENIED) from error
    note(f"{address} is served by {found} (--agent-id demands one)")
    return found


def _launcher(folder: Path, command: str | None, image: str | None) -> Launcher:
    import os
    import shutil

    from .launching import Command, Image

    if image is not None:
        try:
            return Image.find(image, folder)
        except LookupError as error:
            raise FailedError(f"--image: {error}", Exit.USAGE) from error
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise FailedError(f"--command: {error}", Exit.USAGE) from error
    if not words or shutil.which(words[0]) is None:
        raise FailedError(f"--command: there is no program {(words or [''])[0]!r}", Exit.USAGE)
    return Command((os.path.abspath(shutil.which(words[0]) or ""), *words[1:]))


@contextmanager
def _scratch() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="agentctl-conformance-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
