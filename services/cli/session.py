"""How commands reach coordination: the options they share, and the one doorway through which they call.

asyncio, grpc and the stubs are imported when a command runs, never for `--help`.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from libs.state import ADMINISTRATOR, State

from .output import Exit, FailedError, Format, one_line_errors

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub
    from libs.errors import MeshError
    from libs.work import Client

_PANEL = "Connection"

AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Coordination. Default: the plane that runs here.",
                 rich_help_panel=_PANEL, show_default=False),
]  # fmt: skip
TlsDirOption = Annotated[
    Path | None,
    typer.Option("--tls-dir", help="Certificate folder to call with. Default: the local administrator's.",
                 rich_help_panel=_PANEL, show_default=False),
]  # fmt: skip
StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", "--dir", help="State folder of the local plane.",
                 rich_help_panel=_PANEL, show_default=False),
]  # fmt: skip
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="For people or for programs.")]


@dataclass(frozen=True)
class Settings:
    """What the environment and the options before the command said. Only `__main__` reads the environment."""

    state: State
    environment: Mapping[str, str]
    address: str | None = None
    tls_dir: Path | None = None

    @classmethod
    def of(cls, context: typer.Context, state_dir: Path | None = None) -> Settings:
        """The settings of this run, with the state folder that the command itself names."""
        settings = context.find_object(cls)
        if settings is None:
            raise TypeError("the root callback sets the settings")
        return replace(settings, state=State(state_dir)) if state_dir else settings


@dataclass(frozen=True)
class Session:
    """An open connection, and how to print what it brings."""

    client: Client
    address: str
    format: str
    state: State

    @property
    def stub(self) -> CoordinationServiceAsyncStub:
        return self.client.stub

    @property
    def json(self) -> bool:
        return self.format == Format.JSON

    def failed(self, error: MeshError) -> FailedError:
        """The error as the command's own, with its exit code."""
        return failed(error, self.address)


_REFUSED = re.compile(r"failed to connect .*(Unwrap failed|: Socket closed$)")
"""How gRPC puts it that the server ended the handshake after it had our certificate."""

Body = Callable[..., Awaitable[None]]


def command(app: typer.Typer, name: str) -> Callable[[Body], Body]:
    """Registers an async function as a command: it gets a `Session` and its own options; the options of
    the connection come by themselves, and every error of the mesh ends it with its line and exit code."""

    def register(body: Body) -> Body:
        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        has_format = any(each.name == "format_" for each in own)

        @functools.wraps(body)
        def run(**given: Any) -> None:
            settings = Settings.of(given.pop("ctx"), given.pop("state_dir"))
            address, tls_dir = given.pop("address"), given.pop("tls_dir")
            settings = replace(
                settings, address=address or settings.address, tls_dir=tls_dir or settings.tls_dir
            )
            shape = given["format_"] if has_format else given.pop("format_")
            with one_line_errors():
                import asyncio

                asyncio.run(_call(settings, shape, body, given))

        signature = inspect.Signature(
            [*own, *(each for each in _shared() if not has_format or each.name != "format_")]
        )
        run.__dict__.pop("__wrapped__")
        run.__dict__["__signature__"] = signature
        run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        app.command(name)(run)
        return body

    return register


def _shared() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    optional = {"address": AddressOption, "tls_dir": TlsDirOption, "state_dir": StateDirOption}
    return [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        inspect.Parameter("format_", kind, annotation=FormatOption, default=Format.TABLE),
        *(inspect.Parameter(name, kind, annotation=each, default=None) for name, each in optional.items()),
    ]


async def _call(settings: Settings, shape: str, body: Body, given: Mapping[str, object]) -> None:
    address, tls_dir = _target(settings)
    from libs.errors import MeshError
    from libs.identity import Identity
    from libs.work import connect

    check_certificate(tls_dir)
    try:
        async with connect(address, Identity(tls_dir)) as client:
            await body(Session(client, address, shape, settings.state), **given)
    except MeshError as error:
        raise failed(error, address) from error


def _target(settings: Settings) -> tuple[str, Path]:
    running = settings.state.running()
    address = settings.address or running.get("coordination")
    if not address:
        raise FailedError(
            "no plane is running here: start one with `agentctl up`, "
            "or name one by --address or AGENTCTL_COORDINATION_ADDRESS",
            Exit.UNAVAILABLE,
        )
    tls_dir = settings.tls_dir or settings.state.identity(ADMINISTRATOR)
    if not (tls_dir / "tls.crt").is_file():
        raise FailedError(
            f"{tls_dir} holds no certificate: `agentctl up` makes one, `agentctl login` gets one, "
            "or name a folder by --tls-dir or AGENTCTL_TLS_DIR",
            Exit.DENIED,
        )
    return address, tls_dir


def check_certificate(tls_dir: Path) -> None:
    """FailedError says what a server of the same authority would not believe. A failed handshake cannot."""
    from libs import pki
    from libs.errors import UnauthenticatedError
    from libs.identity import Identity
    from libs.rpc.rotation import Files

    identity = Identity(tls_dir)
    try:
        pki.judged(identity, time.time())
        Files(identity).check()
    except UnauthenticatedError as error:
        mend = (
            "`agentctl up` and `agentctl login` make new ones, for a hand-run authority `agentctl pki issue`"
        )
        raise FailedError(f"{tls_dir}: {error} ({mend})", Exit.DENIED) from error
    except (OSError, ValueError) as error:
        raise FailedError(f"{tls_dir}: not a whole certificate folder: {error}", Exit.DENIED) from error


def failed(error: MeshError, address: str) -> FailedError:
    """The error of a call as a line that names the mend, with its exit code."""
    from libs import errors
    from libs.cluster import UnauthorisedError

    match error:
        case errors.NotFoundError():
            return FailedError(f"{error}", Exit.NOT_FOUND)
        case errors.UnauthenticatedError():
            return FailedError(f"{error} (see who you are with `agentctl pki show DIR`)", Exit.DENIED)
        case errors.DeniedError() | UnauthorisedError():
            return FailedError(f"{error}", Exit.DENIED)
        case errors.UnreachableError():
            return _unreachable(str(error), address)
        case errors.DeadlineError():
            return FailedError(f"{address} did not answer in time: {error}", Exit.UNAVAILABLE)
        case errors.UnavailableError():
            return FailedError(f"{address} answers UNAVAILABLE: {error}", Exit.UNAVAILABLE)
        case errors.InternalError():
            return FailedError(f"{address} has an error of its own, and its log the details: {error}")
        case _:
            return FailedError(str(error) or error.reason)


def _unreachable(said: str, address: str) -> FailedError:
    """gRPC tells the ways in which a connection can fail apart in its text only."""
    if "CERTIFICATE_VERIFY_FAILED" in said:
        who = "its certificate is not by the authority of your certificate folder, or is another component's"
        return FailedError(f"{address} is not believed: {who} (see `agentctl pki show DIR`)", Exit.DENIED)
    if _REFUSED.search(said):
        why = "it does not believe your certificate: another authority's, or a clock is wrong"
        return FailedError(
            f"{address} refused the TLS handshake: {why} (see `agentctl pki show DIR`)", Exit.DENIED
        )
    if "handshake failed" in said:
        return FailedError(f"{address} answers, but not with TLS as it should: {said}", Exit.UNAVAILABLE)
    return FailedError(
        f"nobody answers at {address}: {said} (is it up, see `agentctl up`?)", Exit.UNAVAILABLE
    )
