"""The keys and certificates of a cluster: who its parts are. Good for a month."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .place import API_IP, NODE, NODE_IP

_DAYS = 30
_MASTERS = "system:masters"
_API_NAMES = (
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    "localhost", "127.0.0.1", API_IP, NODE_IP,
)  # fmt: skip


class _Authority:
    """A CA whose files are `<name>.crt` and `<name>.key` of a folder. It is made unless it is there."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = _named(name)
        if (file := folder / f"{name}.key").exists():
            kept = load_pem_private_key(file.read_bytes(), None)
            assert isinstance(kept, ec.EllipticCurvePrivateKey)
            self._key = kept
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key).add_extension(constraint, critical=True)
        _write(folder / name, self._key, made.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, common: str, group: str = "", hosts: Sequence[str] = ()) -> None:
        """A certificate for both ends of TLS. `group` is what the API server makes of it."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(_named(common, group), key).add_extension(usage, critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_san(h) for h in hosts]), critical=False
            )
        _write(self._folder / name, key, builder.sign(self._key, hashes.SHA256()))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_DAYS))
        )


def make_certificates(folder: Path) -> None:
    """Fill the folder, unless it is filled."""
    if (folder / "admin.crt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _Authority(folder, "front-proxy-ca").issue("front-proxy", "front-proxy-client")
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(folder / "sa.key", signer)
    public = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)
    ca = _Authority(folder, "ca")
    ca.issue("apiserver", "kube-apiserver", hosts=_API_NAMES)
    ca.issue("kubelet-client", "kube-apiserver-kubelet-client", _MASTERS)
    ca.issue("controller-manager", "system:kube-controller-manager")
    ca.issue("scheduler", "system:kube-scheduler")
    ca.issue("kubelet", f"system:node:{NODE}", "system:nodes", [NODE, NODE_IP])
    ca.issue("proxy", "system:kube-proxy", _MASTERS)
    ca.issue("admin", "admin", _MASTERS)


def front_proxy(folder: Path, common: str, stem: Path) -> None:
    """One more of the front proxy's authority, which is in that folder: `<stem>.crt` and `.key`."""
    _Authority(folder, "front-proxy-ca").issue(str(stem.absolute()), common)


def _named(common: str, group: str = "") -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, group), (NameOID.COMMON_NAME, common)]
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value])


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(stem: Path, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> None:
    _write_key(stem.with_suffix(".key"), key)
    stem.with_suffix(".crt").write_bytes(made.public_bytes(Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
