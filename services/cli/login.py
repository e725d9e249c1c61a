"""`agentctl login`: a certificate for a person, grpcurl or a producer, by a ServiceAccount's token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libs.state import ADMINISTRATOR

from .objects import ContextOption, KubeconfigOption
from .output import Exit, FailedError, Format, emit, fields, one_line_errors
from .session import FormatOption, Settings, StateDirOption, failed
from .world import Target, open_world

if TYPE_CHECKING:
    from libs.enrol import Certificate

_BUNDLE = "agentctl-trust"
_AUDIENCE = "agentctl-identity"
_TOKEN_SECONDS = 600  # the shortest that Kubernetes issues


@dataclass(frozen=True)
class Login:
    """Who wants to be who, and by what."""

    settings: Settings
    address: str
    folder: Path
    producer: str
    user: str
    administrator: bool
    token_file: Path | None
    ca_file: Path | None
    service_account: str
    kubeconfig: Path | None
    context: str
    system_namespace: str

    def check(self) -> None:
        """FailedError unless the options make sense together."""
        if [bool(self.producer), bool(self.user), self.administrator].count(True) != 1:
            raise FailedError("say one of --producer, --user, --administrator", Exit.USAGE)
        if self.is_at_home:
            return
        if not self.address:
            raise FailedError("--identity-address is missing, and no plane runs here", Exit.USAGE)
        if bool(self.token_file) == bool(self.service_account):
            raise FailedError("say one of --service-account, --token-file", Exit.USAGE)
        namespace, _, name = self.service_account.partition("/")
        if self.service_account and not (namespace and name):
            raise FailedError("--service-account: is NAMESPACE/NAME", Exit.USAGE)

    @property
    def is_at_home(self) -> bool:
        """Whether it is the plane that runs here that we ask."""
        elsewhere = self.address or self.kubeconfig or self.context or self.token_file or self.ca_file
        return not elsewhere and "identity" in self.settings.state.running()

    @property
    def account(self) -> tuple[str, str]:
        """Namespace and name of the ServiceAccount. At home one goes without saying."""
        if self.service_account:
            namespace, _, name = self.service_account.partition("/")
            return namespace, name
        if self.administrator:
            return self.system_namespace, ADMINISTRATOR
        return self.producer or self.user, "default"

    @property
    def needs_cluster(self) -> bool:
        """Whether something has to be read from the API server."""
        return not (self.token_file and self.ca_file)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(login)


def login(
    ctx: typer.Context,
    tls_dir: Annotated[Path, typer.Option(help="Where the certificate folder goes.")],
    identity_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="IdentityService, e.g. by `kubectl port-forward`. Default: of the plane that runs here.",
        ),
    ] = "",
    producer: Annotated[str, typer.Option(metavar="NAMESPACE", help="Submit work to this namespace.")] = "",
    user: Annotated[str, typer.Option(metavar="NAMESPACE", help="Operate this namespace.")] = "",
    administrator: Annotated[bool, typer.Option("--administrator", help="Administer everything.")] = False,
    service_account: Annotated[
        str,
        typer.Option(metavar="NAMESPACE/NAME", help="Ask for a token of this account. At home not needed."),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="A token of the audience agentctl-identity instead.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="The mesh's roots. Default: the cluster's ConfigMap agentctl-trust.")
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    state_dir: StateDirOption = None,
    system_namespace: Annotated[str, typer.Option(help="Where the control plane is.")] = "agentctl-system",
    format_: FormatOption = Format.TABLE,
) -> None:
    """Get a certificate for yourself, grpcurl or a producer, good for a day.

    From the plane that runs here, or from a cluster if an address or a kubeconfig is named. There RBAC says
    who may be what: verb `request` on `producers`, `users` or `administrators` of the API group
    identity.agentctl.dev. The private key is made in the folder and stays there.

    \b
    Examples:
      agentctl login --producer demo --tls-dir ci
      kubectl -n agentctl-system port-forward svc/operator 7412 &
      agentctl login --service-account demo/ci --producer demo --identity-address localhost:7412 --tls-dir ci
    """
    wanted = Login(
        Settings.of(ctx, state_dir), identity_address, tls_dir, producer, user, administrator, token_file,
        ca_file, service_account,
        kubeconfig, context, system_namespace,
    )  # fmt: skip
    with one_line_errors():
        wanted.check()
        import asyncio

        _describe(wanted, asyncio.run(_enrol(wanted)), format_)


async def _enrol(wanted: Login) -> Certificate:
    from libs import pki
    from libs.enrol import Claim, ask
    from libs.errors import MeshError, UnreachableError
    from libs.identity import Identity
    from libs.settings import SettingsError

    identity = Identity(wanted.folder)
    address = wanted.settings.state.running()["identity"] if wanted.is_at_home else wanted.address
    try:
        token, roots = await _credentials(wanted)
        key = pki.own_key(identity.key)
        claim = Claim(
            token,
            pki.new_request(key),
            producer_namespace=wanted.producer,
            user_namespace=wanted.user,
            administrator=wanted.administrator,
        )
        certificate = await ask(address, roots, claim)
        key_pem = identity.key.read_bytes()
        if not pki.renewal_of(certificate.chain_pem, key_pem, certificate.bundle):
            raise ValueError("the certificate that came is not for our key")
    except UnreachableError as error:
        which = f"the operator of {address} is not there, or is not by these roots"
        raise FailedError(f"{which}: {error}", Exit.UNAVAILABLE) from error
    except MeshError as error:
        raise failed(error, address) from error
    except SettingsError as error:
        raise FailedError(str(error), Exit.UNAVAILABLE) from error
    except ValueError as error:
        raise FailedError(f"{address}: {error}") from error
    pki.write_identity(identity, certificate.bundle, key_pem, certificate.chain_pem)
    return certificate


async def _credentials(wanted: Login) -> tuple[str, str]:
    """The token, and the roots that the server has to be by."""
    token = wanted.token_file.read_text().strip() if wanted.token_file else ""
    roots = wanted.ca_file.read_text() if wanted.ca_file else ""
    if not wanted.needs_cluster:
        return token, roots
    from libs.cluster.kinds import CONFIG_MAP

    if wanted.is_at_home:
        async with open_world(wanted.settings, Target()) as world:
            trust = await world.get(CONFIG_MAP, wanted.system_namespace, _BUNDLE)
            with _naming(wanted.account):
                return await world.token(*wanted.account, _AUDIENCE), trust["data"]["ca.crt"]
    from libs.cluster.kubernetes import connect

    async with connect(wanted.kubeconfig, wanted.context) as cluster:
        if not roots:
            trust = await cluster.get(CONFIG_MAP, wanted.system_namespace, _BUNDLE)
            roots = trust["data"]["ca.crt"]
        if not token:
            with _naming(wanted.account):
                token = await cluster.issue_token(*wanted.account, _AUDIENCE, _TOKEN_SECONDS)
    return token, roots


@contextmanager
def _naming(account: tuple[str, str]) -> Iterator[None]:
    """Says of an account that is not there where it was looked for, and what to do."""
    from libs.errors import NotFoundError

    namespace, name = account
    try:
        yield
    except NotFoundError as error:
        where = f"namespace {namespace!r} has no ServiceAccount {name!r}, or does not exist"
        mend = "see `agentctl get namespaces`; apply a Namespace or a ServiceAccount as any other object"
        raise FailedError(f"{where} ({mend})", Exit.NOT_FOUND) from error


def _describe(wanted: Login, certificate: Certificate, shape: Format) -> None:
    from datetime import UTC, datetime

    from libs.mesh import APISERVER, COORDINATION

    expires = datetime.fromtimestamp(certificate.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    folder = wanted.folder.absolute()
    files = f"-cacert {folder}/ca.crt -cert {folder}/tls.crt -key {folder}/tls.key"
    document = {"id": certificate.spiffe_id, "expires": expires, "folder": str(folder)}
    running = wanted.settings.state.running() if wanted.is_at_home else {}
    for field, component in (("grpcurl", COORDINATION), ("grpcurl_management", APISERVER)):
        if component == COORDINATION or not wanted.producer:  # who may not manage
            where = running.get(component.name, f"HOST:{component.port}")
            authority = f"{component.name}.cp.{certificate.bundle.domain}"
            document[field] = f"grpcurl {files} -authority {authority} {where} list"
    if shape is Format.JSON:
        emit(document)
    else:
        fields(document.items())
