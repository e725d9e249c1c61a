"""The files of an `Identity`, written so that a reader never sees half a one."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libs import files
from libs.identity import Identity

from .bundle import TrustBundle
from .certificates import new_key, private_pem


def read(path: Path) -> list[x509.Certificate]:
    """The certificates of a file. OSError or ValueError."""
    return x509.load_pem_x509_certificates(path.read_bytes())


def write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replaces the file whole."""
    files.replace(path, content, mode=mode)


def own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in that file, made (mode 0600) if there is none. OSError; ValueError if it is no EC key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        write(path, private_pem(new_key()), mode=0o600)
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not an EC key")
    return key


def write_bundle(identity: Identity, bundle: TrustBundle) -> None:
    """Whom we trust: each file that differs is replaced whole."""
    for name, text in bundle.files.items():
        path = identity.folder / name
        if not path.exists() or path.read_text() != text:
            write(path, text.encode())


def write_denied(identity: Identity, text: str) -> None:
    """Who is refused although his certificate is good: the file `denied`, replaced if it differs."""
    path = identity.folder / "denied"
    identity.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (path.read_text() if path.exists() else "") != text:
        write(path, text.encode())


def write_identity(identity: Identity, bundle: TrustBundle, key_pem: bytes, chain_pem: bytes) -> None:
    """All of a certificate folder, made if it is not there.

    tls.crt comes last and tls.key just before it: a reader that reads both again whenever tls.crt changes
    ends with a pair that matches.
    """
    identity.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_bundle(identity, bundle)
    if not identity.key.exists() or identity.key.read_bytes() != key_pem:
        write(identity.key, key_pem, mode=0o600)
    write(identity.certificate, chain_pem)
