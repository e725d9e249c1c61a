"""Who asks over HTTPS: whom the API server's front proxy names, or whose token it is.

Headers that name somebody count only if the front proxy sent them: its certificate is signed by an authority
of the ConfigMap `extension-apiserver-authentication`, for clients, in date, and of an allowed name.
https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/#authentication-flow
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)
from prometheus_client import Counter

from libs.cluster import Bearer, Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import CONFIG_MAP
from libs.errors import ExhaustedError, UnauthenticatedError, UnavailableError

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
REVIEWS_AT_ONCE = 32
"""Of tokens, which anybody may show."""

_UNBELIEVED = Counter(
    "agentctl_apiserver_unauthenticated_total", "Requests to the aggregated API of nobody we know.", ("why",)
)
_KEY = "requestheader-"
_USUAL = ("x-remote-",)  # what such headers begin with, unless the ConfigMap says otherwise

_log = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]
"""Names are in lower case."""


@dataclass(frozen=True)
class FrontProxy:
    """Whom to believe as the front proxy, and in which headers it says who asks."""

    pem: bytes
    authorities: tuple[x509.Certificate, ...]
    allowed_names: frozenset[str]
    """Common names; empty: any."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def of(cls, config: Object) -> FrontProxy | None:
        """As the ConfigMap says; None if it knows of no front proxy, ValueError if it makes no sense."""
        data = config.get("data") or {}
        pem = data.get(f"{_KEY}client-ca-file", "").encode()
        if not pem:
            return None

        def names(key: str) -> tuple[str, ...]:
            found = json.loads(data.get(_KEY + key) or "[]")
            if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                raise ValueError(f"{_KEY}{key} is not a list of names")
            return tuple(found)

        def headers(key: str) -> tuple[str, ...]:
            return tuple(name.lower() for name in names(key) if name)

        return cls(
            pem,
            tuple(x509.load_pem_x509_certificates(pem)),
            frozenset(names("allowed-names")),
            headers("username-headers"),
            headers("group-headers"),
            headers("uid-headers"),
            headers("extra-headers-prefix"),
        )

    def check(self, leaf: bytes, now: datetime) -> None:
        """UnauthenticatedError unless this is the front proxy's certificate, DER. It must be signed by one of
        the authorities itself."""
        verifier = (
            PolicyBuilder()
            .store(Store(list(self.authorities)))
            .time(now)
            .extension_policies(ee_policy=_LEAF, ca_policy=_AUTHORITY)
            .max_chain_depth(0)
            .build_client_verifier()
        )
        try:
            certificate = x509.load_der_x509_certificate(leaf)
            verifier.verify(certificate, [])
            names = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except (VerificationError, ValueError) as error:
            raise UnauthenticatedError(f"not the front proxy's certificate: {error}") from error
        if self.allowed_names and not (len(names) == 1 and names[0] in self.allowed_names):
            raise UnauthenticatedError(f"the certificate of {names} is not that of an allowed front proxy")

    def named(self, headers: Headers) -> Bearer | None:
        """Whom its headers name; None if they name no user. UnauthenticatedError if they are not UTF-8."""
        try:
            said = [(name.decode("ascii"), value.decode()) for name, value in headers if value]
        except UnicodeDecodeError as error:
            raise UnauthenticatedError("headers that are not UTF-8") from error

        def values(names: Sequence[str]) -> Iterator[str]:
            return (value for wanted in names for name, value in said if name == wanted)

        user = next(values(self.user_headers), "")
        if not user:
            return None
        extra: dict[str, tuple[str, ...]] = {}
        for prefix in self.extra_prefixes:
            for name, value in said:
                if name.startswith(prefix):
                    key = unquote(name.removeprefix(prefix))
                    extra[key] = (*extra.get(key, ()), value)
        groups = tuple(values(self.group_headers))
        return Bearer(user, groups, next(values(self.uid_headers), ""), extra=extra)

    @property
    def header_prefixes(self) -> tuple[str, ...]:
        """What headers that name somebody begin with."""
        return (*self.user_headers, *self.group_headers, *self.uid_headers, *self.extra_prefixes)


class Callers:
    """Who makes a request. It follows the ConfigMap while `run` runs; `folder` is for the authorities' file,
    and `changed` is called after each change of it."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        changed: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._file = folder / "front-proxy-ca.crt"
        self._changed = changed
        self._clock = clock
        self._proxy: FrontProxy | None = None
        self._reviews = 0
        self._informer = Informer(cluster, CONFIG_MAP, NAMESPACE, name=NAME)
        self._informer.subscribe(self._take)

    async def run(self) -> None:
        """For ever."""
        await self._informer.run()

    def check(self) -> None:
        """UnavailableError before the first look: until then even the front proxy is believed nothing."""
        if self._informer.age_seconds() == float("inf"):
            raise UnavailableError(f"ConfigMap {NAMESPACE}/{NAME} was not read yet")

    def client_ca(self) -> Path | None:
        """The file of the front proxy's authorities; None while there is no front proxy."""
        return self._file if self._proxy else None

    async def bearer(self, headers: Headers, leaf: bytes | None) -> Bearer:
        """Who asks, given also the client's certificate, DER. UnauthenticatedError if nobody we know;
        UnavailableError if it cannot be found out; ExhaustedError if too many show tokens at once."""
        proxy = self._proxy
        prefixes = (*_USUAL, *(proxy.header_prefixes if proxy else ()))
        if any(name.decode("latin-1").startswith(prefixes) for name, _ in headers):
            with _UNBELIEVED.labels("header").count_exceptions(UnauthenticatedError):
                return self._named(proxy, headers, leaf)
        kind, _, token = dict(headers).get(b"authorization", b"").decode("latin-1").partition(" ")
        with _UNBELIEVED.labels("token").count_exceptions(UnauthenticatedError):
            if kind.lower() != "bearer" or not token.strip():
                raise UnauthenticatedError("neither a front proxy's certificate nor a bearer token")
            return await self._reviewed(token.strip())

    async def _reviewed(self, token: str) -> Bearer:
        if self._reviews >= REVIEWS_AT_ONCE:
            raise ExhaustedError("too many tokens at once, try again")
        self._reviews += 1
        try:
            return await self._cluster.review_token(token, "")
        finally:
            self._reviews -= 1

    def _named(self, proxy: FrontProxy | None, headers: Headers, leaf: bytes | None) -> Bearer:
        if proxy is None:
            raise UnauthenticatedError("headers name somebody, but there is no front proxy here")
        if leaf is None:
            raise UnauthenticatedError("headers name somebody, but there is no front proxy's certificate")
        proxy.check(leaf, self._clock())
        bearer = proxy.named(headers)
        if bearer is None:
            raise UnauthenticatedError("the front proxy names no user")
        return bearer

    def _take(self, _: Object | None, config: Object | None) -> None:
        try:
            self._proxy = FrontProxy.of(config) if config else None
        except ValueError as error:
            _log.error("ConfigMap %s/%s: %s; no front proxy is believed", NAMESPACE, NAME, error)
            self._proxy = None
        if self._proxy:
            self._file.write_bytes(self._proxy.pem)
            _log.info("the front proxy is whom the ConfigMap %s/%s says", NAMESPACE, NAME)
        self._changed()


def _for_clients(_: Policy, __: x509.Certificate, usage: x509.ExtendedKeyUsage) -> None:
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise ValueError("it is not for clients")


_LEAF = ExtensionPolicy.permit_all().require_present(
    x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _for_clients
)
_AUTHORITY = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
