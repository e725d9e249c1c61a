"""An aggregated API over real TLS, an authority of the front proxy, and clients of both HTTP versions."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, HeadersFrame

from libs.cluster import Bearer
from libs.errors import UnauthenticatedError
from libs.identity import Identity
from libs.places import Places
from libs.rpc.edge import Edge
from libs.testing import h2
from libs.testing.mesh import Mesh
from services.apiserver.http import serve_edge
from services.apiserver.management import AT_ONCE, SHARE
from services.apiserver.proxying import NAME, NAMESPACE
from services.apiserver.settings import Settings
from services.apiserver.verbs import Report, Stage

BASE = "/apis/management.agentctl.dev/v1alpha1"
DRAIN = f"{BASE}/namespaces/demo/agents/writer/drain"
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
TOKEN = {"Authorization": "Bearer good"}
PATIENCE = 20.0


@dataclass(frozen=True)
class Shown:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Ca:
    """An authority that signs what it is told to."""

    def __init__(self, folder: Path, name: str = "front-proxy-ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self.name, self.key.public_key(), datetime.now(UTC) + timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = made.sign(self.key, hashes.SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def leaf(
        self,
        name: str = "front-proxy-client",
        *,
        usage: x509.ObjectIdentifier | None = CLIENT,
        end: datetime | None = None,
    ) -> Shown:
        """Without names beyond the common one, as kubeadm makes it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key.public_key(), end or datetime.now(UTC) + timedelta(hours=1))
        if usage is not None:
            made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        certificate = made.sign(self.key, hashes.SHA256())
        path = self.folder / f"{certificate.serial_number}"
        path.with_suffix(".crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        path.with_suffix(".key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return Shown(path.with_suffix(".crt"), path.with_suffix(".key"))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(self.name, subject, key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - timedelta(days=2))
            .not_valid_after(end)
        )


def der(shown: Shown) -> bytes:
    return x509.load_pem_x509_certificate(shown.certificate.read_bytes()).public_bytes(Encoding.DER)


def config(ca: Ca | None, **data: Any) -> dict[str, Any]:
    """The ConfigMap as kube-apiserver writes it; `data` are its lists, by key."""
    lists = {
        "allowed-names": ["front-proxy-client"],
        "username-headers": ["X-Remote-User"],
        "group-headers": ["X-Remote-Group"],
        "extra-headers-prefix": ["X-Remote-Extra-"],
        "uid-headers": ["X-Remote-Uid"],
        **{key.replace("_", "-"): value for key, value in data.items()},
    }
    said = {f"requestheader-{key}": json.dumps(value) for key, value in lists.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": NAMESPACE, "name": NAME},
        "data": said | ({"requestheader-client-ca-file": ca.pem} if ca else {}),
    }


class Kube:
    """A local home that believes the token `good`, or `good NAME`, and says what was reviewed."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.tokens: list[tuple[str, str]] = []
        self.accesses: list[Any] = []
        self.review: asyncio.Event | None = None
        """Tokens are reviewed when it is set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def review_token(self, token: str, audience: str) -> Bearer:
        self.tokens.append((token, audience))
        if self.review:
            await self.review.wait()
        word, _, name = token.partition(" ")
        if word != "good":
            raise UnauthenticatedError("the token is not valid")
        return Bearer(f"system:serviceaccount:demo:{name or 'ci'}", ("system:authenticated",))

    async def review_access(self, bearer: Bearer, access: Any) -> bool:
        self.accesses.append((bearer, access))
        return False

    async def says(self, thing: dict[str, Any]) -> None:
        """From now on that is the ConfigMap."""
        await self._inner.apply(thing, "kube-apiserver")


@dataclass
class Manager:
    """Says what it is told to, and keeps what it was asked."""

    report: Report = field(default_factory=lambda: Report((), Stage.ACCEPTED))
    error: Exception | None = None
    asked: list[Any] = field(default_factory=list)
    hold: asyncio.Event | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody was no longer worked for."""
    places: Places = field(default_factory=lambda: Places(AT_ONCE, SHARE))

    async def act(self, bearer: Bearer, order: Any, *, within: float = float("inf")) -> Report:
        self.asked.append((bearer, order, within))
        return await self._answer()

    async def status(self, bearer: Bearer, target: Any, *, within: float = float("inf")) -> Any:
        self.asked.append((bearer, target, within))
        await self._answer()
        return ()

    async def _answer(self) -> Report:
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.gone.set()
                raise
        if self.error is not None:
            raise self.error
        return self.report


@dataclass(frozen=True)
class Said:
    """An answer."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def served(mesh: Mesh, cluster: Any, management: Any, **changes: Any) -> AsyncIterator[Edge]:
    """The edge on a free port."""
    identity = mesh.identity("cp/apiserver")
    settings = replace(Settings(tls_dir=identity.folder, edge_port=0), **changes)
    async with serve_edge(management, cluster, identity, settings) as (edge, _):
        yield edge


async def ask(
    edge: Edge,
    method: str,
    path: str,
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    *,
    body: bytes = b"",
    shown: Shown | None = None,
    version: str = "1.1",
) -> Said:
    """One request on a connection of its own, again if a rotation ends that before its first request. OSError
    if the handshake is refused."""
    fields = list(headers.items() if isinstance(headers, Mapping) else headers)
    speak = _speak_1 if version == "1.1" else _speak_2
    for _ in range(3):
        try:
            return await asyncio.to_thread(speak, edge.port, method, path, fields, body, shown)
        except http.client.RemoteDisconnected as ended:
            error = ended
    raise error


def _speak_1(
    port: int, method: str, path: str, fields: list[tuple[str, str]], body: bytes, shown: Shown | None
) -> Said:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shown:
        context.load_cert_chain(shown.certificate, shown.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in [*fields, ("Content-Length", str(len(body)))]:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return Said(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def _speak_2(
    port: int, method: str, path: str, fields: list[tuple[str, str]], body: bytes, shown: Shown | None
) -> Said:
    asked: Any = shown  # all that a connection wants of an identity
    block = [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", "test"),
        *((name.lower(), value) for name, value in fields),
    ]
    frame = HeadersFrame(1, Encoder().encode(block))
    frame.flags.add("END_HEADERS")
    if not body:
        frame.flags.add("END_STREAM")
    with h2.Connection(port, asked) as connection:
        connection.say(h2.PREFACE + frame.serialize() + (h2.data(body) if body else b""))
        heard: dict[str, str] = {}
        content = b""
        for answer in connection.hear(PATIENCE):
            if isinstance(answer, HeadersFrame):
                heard |= {str(name): str(value) for name, value in Decoder().decode(answer.data)}
            elif isinstance(answer, DataFrame):
                content += answer.data
            if answer.stream_id == 1 and "END_STREAM" in answer.flags:
                return Said(int(heard[":status"]), heard, content)
        raise http.client.RemoteDisconnected(connection.closed)


def certificate_of(identity: Identity) -> Shown:
    """A certificate of the mesh as a client shows it."""
    return Shown(identity.certificate, identity.key)
