"""Whom we believe: leaf certificates into peers, and our own certificate's id and end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from libs.errors import UnauthenticatedError
from libs.identity import Identity, Principal, TrustClass

from .bundle import TrustBundle
from .certificates import CLIENT, UNREADABLE, is_authority, key_of, signed, uri, usages
from .files import read

_log = logging.getLogger(__name__)

_REMEMBERED = 4096  # peers; an entry is about 2 KiB
_RECHECK_SECONDS = 1.0


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
            principal = Principal.parse(uri(leaf))
            authority = is_authority(leaf)
            purposes = usages(leaf)
        except UNREADABLE as error:
            raise UnauthenticatedError(f"unusable certificate: {error}") from error
        if principal.domain != self._domain:
            raise UnauthenticatedError(f"{principal.id} is not of the trust domain {self._domain}")
        if not any(signed(leaf, pin) for pin in self._pins[principal.trust_class]):
            raise UnauthenticatedError(
                f"the certificate of {principal.id} is not signed by the {principal.trust_class} intermediate"
            )
        if authority:
            raise UnauthenticatedError(f"the certificate of {principal.id} is one of an authority")
        if CLIENT not in purposes:
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
        return {each: read(self._identity.intermediate(each)) for each in TrustClass}


def own(identity: Identity) -> Principal:
    """Who we are, by our own certificate. OSError or ValueError if that cannot be read."""
    return Principal.parse(uri(read(identity.certificate)[0]))


def judged(identity: Identity, now: float) -> Peer:
    """Our own certificate as a peer of this authority judges it. UnauthenticatedError says what is wrong with
    it; OSError or ValueError if the folder is not whole."""
    leaf = read(identity.certificate)[0]
    return Trust(identity).verify(leaf.public_bytes(serialization.Encoding.DER), now)


def expiry(identity: Identity) -> datetime:
    """When our own certificate ends."""
    return read(identity.certificate)[0].not_valid_after_utc


def renewal(identity: Identity, bundle: TrustBundle) -> float:
    """When our own certificate has to be made anew, as `renewal_of`; 0 if there is none."""
    try:
        chain, key = identity.certificate.read_bytes(), identity.key.read_bytes()
    except OSError:
        return 0.0
    return renewal_of(chain, key, bundle)


def renewal_of(chain_pem: bytes, key_pem: bytes, bundle: TrustBundle) -> float:
    """When two thirds of a certificate's life are over (unix seconds); 0 if it is not for this key, or if
    nobody in the bundle vouches for it."""
    try:
        leaf = x509.load_pem_x509_certificates(chain_pem)[0]
        key_of(key_pem, leaf, "the private key")
        trust_class = Principal.parse(uri(leaf)).trust_class
    except ValueError:
        return 0.0
    if not bundle.vouches(trust_class, leaf):
        return 0.0
    start, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    return start + (end - start) * 2 / 3
