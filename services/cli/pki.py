"""`agentctl pki`: a stand-alone certificate authority for services run by hand, and certificates by it.

A plane of `agentctl up` and a cluster have an authority of their own, in the operator: `agentctl login`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libs.state import ADMINISTRATOR, State

from . import durations
from .output import Exit, FailedError, Format, emit, fields, one_line_errors
from .session import FormatOption, Settings, StateDirOption

if TYPE_CHECKING:
    from libs.pki import Authority

app = typer.Typer(
    no_args_is_help=True,
    help="A stand-alone authority for services run by hand. Planes and clusters have their own: see login.",
)

ADMINISTRATOR_LIFETIME = timedelta(days=30)


@app.command()
def init(
    ctx: typer.Context,
    state_dir: StateDirOption = None,
    domain: Annotated[str, typer.Option(help="Trust domain: the first part of every id.")] = "local.agentctl",
    format_: FormatOption = Format.TABLE,
) -> None:
    """Make a stand-alone authority and an administrator's certificate. `agentctl up` does not use it.

    An authority that is there already is kept; the administrator gets a new certificate.

    Example: agentctl pki init --domain dev.example
    """
    state = Settings.of(ctx, state_dir).state
    with one_line_errors():
        made = not state.pki.exists()
        authority = ensure(state, domain)
        if authority.domain != domain and not made:
            raise FailedError(f"{state.pki}: holds the authority of {authority.domain}, not of {domain}")
        folder = issue(
            authority, f"user/{ADMINISTRATOR}", state.identity(ADMINISTRATOR), ADMINISTRATOR_LIFETIME
        )
        _describe(folder, format_)


@app.command("issue")
def issue_command(
    ctx: typer.Context,
    spiffe_path: Annotated[str, typer.Argument(metavar="SPIFFE-PATH", help="The id, without its domain.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the certificate folder goes.")],
    lifetime: Annotated[
        timedelta, typer.Option(parser=durations.option, metavar="DURATION", help="How long it is good for.")
    ] = "24h",  # type: ignore[assignment]  # typer parses it
    state_dir: StateDirOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Issue a certificate.

    Ids: `user/NAME` administers; `ns/NS/user/NAME` operates one namespace; `ns/NS/producer/NAME` submits
    there; `ns/NS/agent/NAME/pod/POD/UID` works there; `cp/COMPONENT` is part of the plane.

    Example: agentctl pki issue ns/demo/producer/ci ./ci && agentctl work list demo/summarize --tls-dir ./ci
    """
    state = Settings.of(ctx, state_dir).state
    with one_line_errors():
        if not state.pki.exists():
            raise FailedError(f"{state.folder}: no authority here: make one with `agentctl pki init`")
        if lifetime < timedelta(seconds=1):
            raise FailedError("--lifetime: at least 1s", Exit.USAGE)
        _describe(issue(ensure(state), spiffe_path, folder, lifetime), format_)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A certificate folder.")],
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show whose certificate a folder holds, of which class, and until when.

    Example: agentctl pki show ~/.local/state/agentctl/identities/administrator
    """
    with one_line_errors():
        if not (folder / "tls.crt").exists():
            raise FailedError(f"{folder}: holds no certificate (no tls.crt)", Exit.NOT_FOUND)
        _describe(folder, format_)


def ensure(state: State, domain: str = "local.agentctl") -> Authority:
    """The authority of the state folder, made if there is none."""
    from libs.pki import Authority

    state.prepare()
    try:
        return Authority.load(state.pki) if state.pki.exists() else Authority.create(state.pki, domain)
    except ValueError as error:
        raise FailedError(f"{state.pki}: {error}") from error


def issue(authority: Authority, spiffe_path: str, folder: Path, lifetime: timedelta) -> Path:
    """A certificate for `spiffe://<domain>/<path>` in this folder; the plane's own are for localhost too."""
    path = spiffe_path.strip("/")
    names = ["localhost"] if path.startswith("cp/") else []
    try:
        authority.issue(f"spiffe://{authority.domain}/{path}", folder, lifetime=lifetime, dns_names=names)
    except ValueError as error:
        raise FailedError(f"{spiffe_path}: {error}", Exit.USAGE) from error
    return folder


def _describe(folder: Path, shape: Format) -> None:
    from datetime import UTC, datetime

    from libs.identity import Identity
    from libs.pki import expiry, own

    try:
        principal, until = own(Identity(folder)), expiry(Identity(folder))
    except ValueError as error:
        raise FailedError(f"{folder}: not a certificate of this mesh: {error}") from error
    left = (until - datetime.now(UTC)).total_seconds()
    document = {
        "id": principal.id,
        "kind": principal.kind.value,
        "class": principal.trust_class.value,
        "domain": principal.domain,
        "expires": f"{until:%Y-%m-%dT%H:%M:%SZ}",
        "expired": left <= 0,
        "folder": str(folder.absolute()),
    }
    if shape is Format.JSON:
        emit(document)
        return
    standing = f"in {durations.span(left)}" if left > 0 else f"EXPIRED {durations.span(-left)} ago"
    fields([*((name, document[name]) for name in ("id", "kind", "class")),
            ("expires", f"{document['expires']} ({standing})"), ("folder", document["folder"])])  # fmt: skip
