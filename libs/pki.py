"""Certificate authorities, certificates, and whom we believe.

One root signs one intermediate per trust class; an intermediate signs the leaves of its class and no
others. A peer is believed only if the pinned intermediate of the class that its id claims signed its
leaf: what else the peer sends along does not matter.

Intermediates are constrained where every TLS stack in use honours it: no further authority below them;
workloads and users cannot vouch for a control-plane server name; users cannot be servers at all. There are
no URI constraints, since rustls refuses chains that have them; `Trust` checks the URI instead.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.errors import UnauthenticatedError
from libs.identity import Identity, Kind, Principal, TrustClass

_log = logging.getLogger(__name__)

_ROOT_LIFETIME = timedelta(days=3650)
_INTERMEDIATE_LIFETIME = timedelta(days=1825)
_BACKDATE = timedelta(minutes=1)  # clocks differ
_HOUR = timedelta(hours=1)
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH
_REMEMBERED = 4096  # peers; an entry is about 2 KiB
_RECHECK_SECONDS = 1.0
_UNREADABLE = (ValueError, TypeError, x509.DuplicateExtension, x509.InvalidVersion, UnsupportedAlgorithm)


@dataclass(frozen=True)
class Authority:
    """The root and the three intermediates of one trust domain, with the intermediates' keys.

    The root's key is used by `create` only and may be taken elsewhere afterwards.
    """

    domain: str
    root: x509.Certificate
    intermediates: Mapping[TrustClass, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]]

    @classmethod
    def create(cls, folder: Path, domain: str) -> Authority:
        """Makes all keys and certificates, or nothing. FileExistsError if the folder has anything in
        it; ValueError if the domain cannot be one."""
        Principal.parse(f"spiffe://{domain}/user/anyone")
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty; a certificate authority is never overwritten")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch) / "pki"
            made.mkdir(mode=0o700)
            root_key = ec.generate_private_key(ec.SECP256R1())
            root = _authority_certificate(domain, "root", root_key, None)
            _write_pair(made, "root", root, root_key)
            for trust_class in TrustClass:
                key = ec.generate_private_key(ec.SECP256R1())
                certificate = _authority_certificate(domain, trust_class.value, key, (root, root_key))
                _write_pair(made, trust_class.value, certificate, key)
            made.rename(folder)  # refuses when somebody else has filled the folder meanwhile
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The authority that `create` left there. OSError or ValueError if it is not all there."""
        intermediates = {}
        for trust_class in TrustClass:
            certificate = _read(folder / f"{trust_class.value}.crt")[0]
            key = serialization.load_pem_private_key((folder / f"{trust_class.value}.key").read_bytes(), None)
            if (
                not isinstance(key, ec.EllipticCurvePrivateKey)
                or key.public_key() != certificate.public_key()
            ):
                raise ValueError(f"{folder}/{trust_class.value}.key is not the key of its certificate")
            intermediates[trust_class] = (certificate, key)
        root = _read(folder / "root.crt")[0]
        return cls(_uri(root).removeprefix("spiffe://"), root, intermediates)

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
        the request says counts. ValueError if the id is not of this domain, if it would outlive the
        intermediate, if the key is not a proven EC key, or if a user or producer asks for DNS names."""
        principal = Principal.parse(spiffe_id)
        if principal.domain != self.domain:
            raise ValueError(f"{spiffe_id} is not of the trust domain {self.domain}")
        serves = principal.trust_class is not TrustClass.USERS
        if dns_names and not serves:
            raise ValueError(f"{spiffe_id} is nobody's server and gets no DNS names")
        issuer, issuer_key = self.intermediates[principal.trust_class]
        own_name = [principal.dns_name] if principal.kind is Kind.COMPONENT else []
        names = [x509.DNSName(name) for name in dict.fromkeys([*own_name, *dns_names])]
        start = now or datetime.now(UTC)
        if start + lifetime > issuer.not_valid_after_utc:
            longest = max(issuer.not_valid_after_utc - start, timedelta(0)) // _HOUR
            raise ValueError(
                f"a lifetime of {lifetime // _HOUR}h is too long: the {principal.trust_class} intermediate "
                f"ends at {issuer.not_valid_after_utc:%FT%TZ}, so the longest is {longest}h"
            )
        leaf = (
            x509.CertificateBuilder(issuer.subject, _name(principal.kind.value), _proven_key(csr_pem))
            .serial_number(x509.random_serial_number())
            .not_valid_before(start - _BACKDATE)
            .not_valid_after(start + lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_CLIENT, _SERVER] if serves else [_CLIENT]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(spiffe_id), *names]),
                critical=False,
            )
            .add_extension(_issued_by(issuer), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        return _pem(leaf) + _pem(issuer)

    def issue(
        self,
        spiffe_id: str,
        folder: Path,
        *,
        lifetime: timedelta = timedelta(hours=24),
        dns_names: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Identity:
        """A new key and its certificate, as `sign`, written as the files of an `Identity`.

        Each file is replaced whole, tls.crt last and tls.key just before it: a reader that reads both
        again whenever tls.crt changes ends with a pair that matches.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
        csr_pem = csr.public_bytes(serialization.Encoding.PEM)
        chain = self.sign(csr_pem, spiffe_id, lifetime=lifetime, dns_names=dns_names, now=now)
        identity = Identity(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(identity.root, _pem(self.root))
        for trust_class, (certificate, _) in self.intermediates.items():
            _write(identity.intermediate(trust_class), _pem(certificate))
        _write(identity.key, _private_pem(key), mode=0o600)
        _write(identity.certificate, chain)
        return identity


@dataclass(frozen=True, slots=True)
class Peer:
    """A believed certificate: whose it is, until when (unix seconds), and its serial number."""

    principal: Principal
    not_after: float
    serial: int


class Trust:
    """Turns leaf certificates into peers, by the pinned intermediates beside our own certificate.

    A pin file may hold several intermediates while one is being replaced. Pins are read again when their
    files change; until that succeeds the old ones stay.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._domain = own(identity).domain
        self._seen_files = self._stat()
        self._pins = self._read_pins()
        self._checked_at = float("-inf")
        self._peers: dict[bytes, Peer] = {}

    def verify(self, leaf_der: bytes, now: float) -> Peer:
        """Whose leaf this is, at `now` (unix seconds). UnauthenticatedError says what is wrong with it."""
        if not 0 <= now - self._checked_at < _RECHECK_SECONDS:
            self._checked_at = now
            self._reread()
        if (peer := self._peers.get(leaf_der)) and now <= peer.not_after:
            return peer
        peer = self._believe(leaf_der, now)
        if len(self._peers) >= _REMEMBERED:
            del self._peers[next(iter(self._peers))]
        self._peers[leaf_der] = peer
        return peer

    def _believe(self, leaf_der: bytes, now: float) -> Peer:
        try:
            leaf = x509.load_der_x509_certificate(leaf_der)
            principal = Principal.parse(_uri(leaf))
            authority = _is_authority(leaf)
            usages = _usages(leaf)
        except _UNREADABLE as error:
            raise UnauthenticatedError(f"unusable certificate: {error}") from error
        if principal.domain != self._domain:
            raise UnauthenticatedError(f"{principal.id} is not of the trust domain {self._domain}")
        if not any(_signed(leaf, pin) for pin in self._pins[principal.trust_class]):
            raise UnauthenticatedError(
                f"the certificate of {principal.id} is not signed by the {principal.trust_class} intermediate"
            )
        if authority:
            raise UnauthenticatedError(f"the certificate of {principal.id} is one of an authority")
        if _CLIENT not in usages:
            raise UnauthenticatedError(f"the certificate of {principal.id} is not for clients")
        if now < leaf.not_valid_before_utc.timestamp():
            raise UnauthenticatedError(f"the certificate of {principal.id} is not valid yet")
        not_after = leaf.not_valid_after_utc
        if now > not_after.timestamp():
            raise UnauthenticatedError(f"the certificate of {principal.id} expired at {not_after:%FT%TZ}")
        return Peer(principal, not_after.timestamp(), leaf.serial_number)

    def _reread(self) -> None:
        try:
            files = self._stat()
            if files == self._seen_files:
                return
            pins = self._read_pins()
        except (OSError, ValueError) as error:
            _log.warning("cannot read the pinned intermediates, keeping those read before: %s", error)
            return
        self._seen_files, self._pins = files, pins
        self._peers.clear()

    def _stat(self) -> list[tuple[int, int, int]]:
        stats = [self._identity.intermediate(each).stat() for each in TrustClass]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]

    def _read_pins(self) -> dict[TrustClass, list[x509.Certificate]]:
        return {each: _read(self._identity.intermediate(each)) for each in TrustClass}


def own(identity: Identity) -> Principal:
    """Who we are, by our own certificate. OSError or ValueError if that cannot be read."""
    return Principal.parse(_uri(_read(identity.certificate)[0]))


def judged(identity: Identity, now: float) -> Peer:
    """Our own certificate as a peer of this authority judges it. UnauthenticatedError says what is wrong with
    it; OSError or ValueError if the folder is not whole."""
    leaf = _read(identity.certificate)[0]
    return Trust(identity).verify(leaf.public_bytes(serialization.Encoding.DER), now)


def expiry(identity: Identity) -> datetime:
    """When our own certificate ends."""
    return _read(identity.certificate)[0].not_valid_after_utc


def _authority_certificate(
    domain: str,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    parent: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    subject = _name(name)
    lifetime = _INTERMEDIATE_LIFETIME if parent else _ROOT_LIFETIME
    builder = (
        x509.CertificateBuilder(parent[0].subject if parent else subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0 if parent else 1), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{domain}")]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if parent:
        builder = builder.add_extension(_issued_by(parent[0]), critical=False)
    if name in (TrustClass.WORKLOADS, TrustClass.USERS):
        reserved = x509.NameConstraints(None, [x509.DNSName(f"cp.{domain}")])
        builder = builder.add_extension(reserved, critical=True)
    if name == TrustClass.USERS:
        builder = builder.add_extension(x509.ExtendedKeyUsage([_CLIENT]), critical=False)
    return builder.sign(parent[1] if parent else key, hashes.SHA256())


def _proven_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    csr = x509.load_pem_x509_csr(csr_pem)
    key = csr.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.key_size < 256:
        raise ValueError("only EC keys of 256 bits or more are certified")
    if not csr.is_signature_valid:
        raise ValueError("the request is not signed by its own key")
    return key


def _signed(leaf: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def _uri(certificate: x509.Certificate) -> str:
    """The one URI SAN; ValueError if there is none, or several."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("no URI SAN") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise ValueError(f"{len(uris)} URI SANs instead of one")
    return uris[0]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return []


def _name(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "agentctl"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    _write(folder / f"{name}.key", _private_pem(key), mode=0o600)
    _write(folder / f"{name}.crt", _pem(certificate))


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made 0600
    with open(descriptor, "wb") as file:
        file.write(content)
    os.chmod(scratch, mode)
    os.replace(scratch, path)
