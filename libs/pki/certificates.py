"""What our certificates look like, and what stands in those of others.

Intermediates are constrained where every TLS stack in use honours it: no further authority below them;
workloads and users cannot vouch for a control-plane server name, nor users for an agent's; users cannot be
servers at all. There are no URI constraints, since rustls refuses chains that have them; `Trust` checks the
URI instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.identity import TrustClass

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
UNREADABLE = (ValueError, TypeError, x509.DuplicateExtension, x509.InvalidVersion, UnsupportedAlgorithm)
"""What reading a certificate of somebody else may raise."""

_BACKDATE = timedelta(minutes=1)  # clocks differ
_RESERVED: dict[str, tuple[str, ...]] = {TrustClass.WORKLOADS: ("cp",), TrustClass.USERS: ("cp", "ns")}


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh one, of the only kind that we make."""
    return ec.generate_private_key(ec.SECP256R1())


def authority_certificate(
    domain: str,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    parent: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    *,
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    """A root, or an intermediate by its parent."""
    subject = _name(name)
    builder = (
        x509.CertificateBuilder(parent[0].subject if parent else subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(end)
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
    if reserved := _RESERVED.get(name):
        excluded = [x509.DNSName(f"{word}.{domain}") for word in reserved]
        builder = builder.add_extension(x509.NameConstraints(None, excluded), critical=True)
    if name == TrustClass.USERS:
        builder = builder.add_extension(x509.ExtendedKeyUsage([CLIENT]), critical=False)
    return builder.sign(parent[1] if parent else key, hashes.SHA256())


def leaf_certificate(
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    key: ec.EllipticCurvePublicKey,
    spiffe_id: str,
    *,
    name: str,
    dns_names: Sequence[str],
    usages: Sequence[x509.ObjectIdentifier],
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    """The certificate of somebody who is no authority."""
    names = [x509.UniformResourceIdentifier(spiffe_id), *map(x509.DNSName, dns_names)]
    return (
        x509.CertificateBuilder(issuer[0].subject, _name(name), key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_issued_by(issuer[0]), critical=False)
        .sign(issuer[1], hashes.SHA256())
    )


def signed(leaf: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether this issuer signed it."""
    try:
        leaf.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def uri(certificate: x509.Certificate) -> str:
    """The one URI SAN; ValueError if there is none, or several."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("no URI SAN") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise ValueError(f"{len(uris)} URI SANs instead of one")
    return uris[0]


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether it may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    """What it says that it is for."""
    try:
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return []


def pem(*certificates: x509.Certificate) -> bytes:
    """As files hold them, one after the other."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_of(text: bytes, certificate: x509.Certificate, where: object) -> ec.EllipticCurvePrivateKey:
    """The private key in a PEM. ValueError, naming where it is from, if it is not this certificate's."""
    key = serialization.load_pem_private_key(text, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError(f"{where} is not the key of its certificate")
    return key


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
