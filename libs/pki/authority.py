"""An authority at one moment: who signs now, and whom the world is told to trust."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from libs.identity import Identity, Kind, Principal, TrustClass

from .bundle import TrustBundle
from .certificates import (
    CLIENT,
    SERVER,
    authority_certificate,
    key_of,
    leaf_certificate,
    new_key,
    pem,
    private_pem,
    uri,
)
from .files import read, write, write_identity
from .request import new_request, proven_key

_ROOT_LIFETIME = timedelta(days=3650)
_INTERMEDIATE_LIFETIME = timedelta(days=1825)
_HOUR = timedelta(hours=1)
_LONGEST_DOMAIN = 79  # with a namespace and an agent's name of 63 and a uid of 36, it makes a DNS name yet


@dataclass(frozen=True)
class Authority:
    """The root and the three intermediates of one trust domain, with the intermediates' keys.

    The root's key is used by `create` only and may be taken elsewhere afterwards.
    """

    domain: str
    root: x509.Certificate
    intermediates: Mapping[TrustClass, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]]
    published: TrustBundle | None = None
    """What is believed beside these while some are being replaced; None: these and nothing else."""

    @classmethod
    def create(cls, folder: Path, domain: str) -> Authority:
        """Makes all keys and certificates, or nothing. FileExistsError if the folder has anything in
        it; ValueError if the domain cannot be one."""
        check_domain(domain)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty; a certificate authority is never overwritten")
        folder.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch) / "pki"
            made.mkdir(mode=0o700)
            root_key = new_key()
            root = authority_certificate(domain, "root", root_key, None, start=now, end=now + _ROOT_LIFETIME)
            _write_pair(made, "root", root, root_key)
            for trust_class in TrustClass:
                key = new_key()
                certificate = authority_certificate(
                    domain,
                    trust_class.value,
                    key,
                    (root, root_key),
                    start=now,
                    end=now + _INTERMEDIATE_LIFETIME,
                )
                _write_pair(made, trust_class.value, certificate, key)
            made.rename(folder)  # refuses when somebody else has filled the folder meanwhile
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The authority that `create` left there. OSError or ValueError if it is not all there."""
        intermediates = {}
        for trust_class in TrustClass:
            certificate = read(folder / f"{trust_class.value}.crt")[0]
            path = folder / f"{trust_class.value}.key"
            intermediates[trust_class] = (certificate, key_of(path.read_bytes(), certificate, path))
        root = read(folder / "root.crt")[0]
        return cls(uri(root).removeprefix("spiffe://"), root, intermediates)

    @property
    def bundle(self) -> TrustBundle:
        """Whom the members of the mesh have to trust."""
        pins = {f"{each.value}.crt": pem(pair[0]).decode() for each, pair in self.intermediates.items()}
        return self.published or TrustBundle({"ca.crt": pem(self.root).decode()} | pins)

    def sign(
        self,
        csr_pem: bytes,
        spiffe_id: str,
        *,
        lifetime: timedelta = timedelta(hours=24),
        dns_names: Sequence[str] = (),
        now: datetime | None = None,
    ) -> bytes:
        """A certificate for the request's key and this id: PEM, leaf then intermediate. Nothing else that
        the request says counts. Components and agents can be servers, by the DNS name that follows from
        their id; `dns_names` are a component's further ones. ValueError if the id is not of this domain, if
        it would outlive the intermediate, if the key is not a proven EC key, if the id makes no DNS name, or
        if it is no component's and there are further names."""
        principal = Principal.parse(spiffe_id)
        if principal.domain != self.domain:
            raise ValueError(f"{spiffe_id} is not of the trust domain {self.domain}")
        if dns_names and principal.kind is not Kind.COMPONENT:
            raise ValueError(f"{spiffe_id} is no component and gets no further DNS names")
        serves = principal.trust_class is not TrustClass.USERS
        issuer = self.intermediates[principal.trust_class]
        start = now or datetime.now(UTC)
        last = issuer[0].not_valid_after_utc
        if start + lifetime > last:
            longest = max(last - start, timedelta(0)) // _HOUR
            raise ValueError(
                f"a lifetime of {lifetime // _HOUR}h is too long: the {principal.trust_class} intermediate "
                f"ends at {last:%FT%TZ}, so the longest is {longest}h"
            )
        own_name = [principal.dns_name] if serves else []
        leaf = leaf_certificate(
            issuer,
            proven_key(csr_pem),
            spiffe_id,
            name=principal.kind.value,
            dns_names=list(dict.fromkeys([*own_name, *dns_names])),
            usages=[CLIENT, SERVER] if serves else [CLIENT],
            start=start,
            end=start + lifetime,
        )
        return pem(leaf, issuer[0])

    def issue(
        self,
        spiffe_id: str,
        folder: Path,
        *,
        lifetime: timedelta = timedelta(hours=24),
        dns_names: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Identity:
        """A new key and its certificate, as `sign`, written as the files of an `Identity`."""
        key = new_key()
        chain = self.sign(new_request(key), spiffe_id, lifetime=lifetime, dns_names=dns_names, now=now)
        identity = Identity(folder)
        write_identity(identity, self.bundle, private_pem(key), chain)
        return identity


def check_domain(domain: str) -> None:
    """ValueError if it cannot be a trust domain, each component and agent of which has a DNS name."""
    if len(domain) > _LONGEST_DOMAIN:
        raise ValueError(
            f"the trust domain {domain} has {len(domain)} characters, {_LONGEST_DOMAIN} are possible"
        )
    _ = Principal.parse(f"spiffe://{domain}/cp/any").dns_name


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    write(folder / f"{name}.key", private_pem(key), mode=0o600)
    write(folder / f"{name}.crt", pem(certificate))
