"""Certificate requests: all that counts in one is its key, and the proof that the asker has it."""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .certificates import UNREADABLE


def new_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #10, PEM, with nothing but the key."""
    csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.PEM)


def proven_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request. ValueError if it is not EC of 256 bits or more, or did not sign the request."""
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
        key = csr.public_key()
        proven = csr.is_signature_valid
    except UNREADABLE as error:
        raise ValueError(f"not a certificate request in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.key_size < 256:
        raise ValueError("only EC keys of 256 bits or more are certified")
    if not proven:
        raise ValueError("the request is not signed by its own key")
    return key


def thumbprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the public key, in hexadecimal."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()
