"""Who calls: a client's certificate, believed alike at the doorway and at an HTTPS edge.

An edge of a gateway may also take callers of a front proxy, which shows a bearer token and says in two
headers for whom it speaks: `EdgeCallers`.
"""

from __future__ import annotations

import hmac
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client import Counter

from libs import pki
from libs.errors import UnauthenticatedError
from libs.identity import Identity, Kind, Principal

_log = logging.getLogger(__name__)

NAMESPACE_HEADER = "x-agentctl-namespace"
AGENT_HEADER = "x-agentctl-agent"
_NAMING = (NAMESPACE_HEADER.encode(), AGENT_HEADER.encode())
_TLS_1_3 = 0x0304
_RELOAD_SECONDS = 1.0
_TOKEN_BYTES = 4096

_IGNORED = Counter(
    "agentctl_edge_ignored_names_total", "Requests whose headers named a caller and were not believed."
)
_REFUSED = Counter("agentctl_edge_unauthenticated_total", "Requests to an edge of nobody we know.", ("why",))


der = lru_cache(maxsize=4096)(ssl.PEM_cert_to_DER_cert)
"""h2corn gives PEM, one object per connection."""


def strict_leaf(scope: Mapping[str, Any]) -> bytes | None:
    """The certificate of an ASGI request's client, DER; None if it showed none. UnauthenticatedError if it
    speaks an older TLS than 1.3."""
    tls = scope["extensions"].get("tls")
    if tls is None:
        return None
    if tls["tls_version"] != _TLS_1_3:
        raise UnauthenticatedError("TLS 1.3 is required")
    chain = tls["client_cert_chain"]
    return der(chain[0]) if chain else None


class Denied:
    """The SPIFFE ids and serial numbers that are refused although their certificates are good.

    One a line in the file `denied` beside our own certificate; without that file nobody is on the list.
    """

    def __init__(self, identity: Identity) -> None:
        self._file = identity.folder / "denied"
        self._entries: frozenset[str | int] = frozenset()
        self.reload()

    def reload(self) -> None:
        """Reads the file again. OSError or UnicodeDecodeError if it is there and unreadable."""
        try:
            lines = self._file.read_text().split()
        except FileNotFoundError:
            lines = []
        self._entries = frozenset(int(line) if line.isdecimal() else line for line in lines)

    def __contains__(self, peer: pki.Peer) -> bool:
        entries = self._entries
        return bool(entries) and (peer.principal.id in entries or peer.serial in entries)


class Believed:
    """Certificates of callers into peers: signed by the intermediate of its class, in date, not denied."""

    def __init__(self, identity: Identity, clock: Callable[[], float] = time.time) -> None:
        self._trust = pki.Trust(identity)
        self._denied = Denied(identity)
        self._clock = clock

    def recognise(self, leaf: bytes | None) -> pki.Peer:
        """Whose certificate (DER) this is. UnauthenticatedError says why nobody's."""
        if leaf is None:
            raise UnauthenticatedError("no client certificate")
        peer = self._trust.verify(leaf, self._clock())
        if peer in self._denied:
            raise UnauthenticatedError(f"{peer.principal.id} is on the deny list")
        return peer

    def check(self, peer: pki.Peer) -> None:
        """UnauthenticatedError if a peer that was believed is so no more."""
        caller = peer.principal.id
        if self._clock() > peer.not_after:
            raise UnauthenticatedError(f"the certificate of {caller} has expired")
        if peer in self._denied:
            raise UnauthenticatedError(f"{caller} is on the deny list")

    def reload(self) -> None:
        """Reads the deny list again. OSError or UnicodeDecodeError if it is there and unreadable."""
        self._denied.reload()


@dataclass(frozen=True, slots=True)
class EdgeCaller:
    """Who makes a request to an edge."""

    principal: Principal
    peer: pki.Peer | None = None
    """None: a front proxy speaks for it, and its id is no SPIFFE id."""


class EdgeCallers:
    """The callers of an HTTPS edge whose clients are asked for a certificate of the mesh.

    Without a certificate, the token that is in `bearer_file` now is enough, together with headers that name
    an agent. Beside a certificate such headers mean nothing, and are counted.
    """

    def __init__(
        self,
        identity: Identity,
        bearer_file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._believed = Believed(identity, clock)
        self._bearer_file = bearer_file
        self._token = b""
        self._read_at = float("-inf")
        self._domain = pki.own(identity).domain

    def client_ca(self) -> Path:
        """For `edge`: who signs certificates of clients."""
        return self._identity.root

    def who(self, scope: Mapping[str, Any]) -> EdgeCaller:
        """The caller of an ASGI request. UnauthenticatedError."""
        self._reread()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            leaf = strict_leaf(scope)
            if leaf is not None:
                if any(name in headers for name in _NAMING):
                    _IGNORED.inc()
                peer = self._believed.recognise(leaf)
                return EdgeCaller(peer.principal, peer)
        except UnauthenticatedError:
            _REFUSED.labels("certificate").inc()
            raise
        try:
            return EdgeCaller(self._spoken_for(headers))
        except UnauthenticatedError:
            _REFUSED.labels("bearer" if b"authorization" in headers else "nothing").inc()
            raise

    def check(self, caller: EdgeCaller) -> None:
        """UnauthenticatedError if a caller that was believed is so no more; for long answers."""
        self._reread()
        if caller.peer is not None:
            self._believed.check(caller.peer)

    def _spoken_for(self, headers: Mapping[bytes, bytes]) -> Principal:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        has_token = scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
        if not self._token or not has_token:
            if any(name in headers for name in _NAMING):
                _IGNORED.inc()
            raise UnauthenticatedError("no client certificate, and no bearer token that we know")
        namespace, name = (headers.get(each, b"").decode("latin-1") for each in _NAMING)
        try:  # a pod's id is of the shape that is checked; nobody's is made of this one
            Principal.parse(f"spiffe://{self._domain}/ns/{namespace}/agent/{name}/pod/x/x")
        except ValueError as error:
            raise UnauthenticatedError(
                f"a bearer token needs {NAMESPACE_HEADER} and {AGENT_HEADER} that name an agent"
            ) from error
        return Principal(
            id=f"bearer:/ns/{namespace}/agent/{name}",
            kind=Kind.AGENT,
            domain=self._domain,
            name=name,
            namespace=namespace,
        )

    def _reread(self) -> None:
        now = time.monotonic()
        if now - self._read_at < _RELOAD_SECONDS:
            return
        self._read_at = now
        try:
            self._believed.reload()
            if self._bearer_file is not None:
                self._token = self._bearer_file.read_bytes()[:_TOKEN_BYTES].strip()
        except (OSError, ValueError) as error:
            _log.warning("cannot read the deny list or the bearer token, keeping what was read: %s", error)
