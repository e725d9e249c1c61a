"""Authorities over time: what is published, who signs, and when the old ones are dropped.

A new generation of an authority is first only published; it signs from `signs_from` on, when every member
of the mesh can have heard of it; the one before it stays believed until `ends`, when the last leaf that it
signed has run out. A new root brings new intermediates along, so both are published by one change and take
over at the same moment. All of it is a pure function of the stored generations and of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from libs.errors import PreconditionError
from libs.identity import TrustClass

from .authority import Authority, check_domain
from .bundle import TrustBundle
from .certificates import authority_certificate, new_key, pem, signed

_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Terms:
    """How long things last."""

    root: timedelta = timedelta(days=3650)
    intermediate: timedelta = timedelta(days=365)
    leaf: timedelta = timedelta(hours=24)
    """The longest life of a leaf."""
    overlap: timedelta = timedelta(hours=24)
    """From the publication of an authority to its first signature: as long as a leaf, so that even who reads
    the bundle only when it renews has heard of it."""


@dataclass(frozen=True)
class Generation:
    """One authority: its certificate and key, when it begins to sign, and when it is no longer believed."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    signs_from: datetime
    ends: datetime | None = None
    """None while it has no successor."""


@dataclass(frozen=True)
class Keyring:
    """All generations of the root and of the intermediates of a trust domain, each line oldest first."""

    domain: str
    roots: tuple[Generation, ...]
    intermediates: Mapping[TrustClass, tuple[Generation, ...]]
    terms: Terms = field(default=Terms())

    @classmethod
    def begin(cls, domain: str, now: datetime, terms: Terms = Terms()) -> Keyring:
        """A new trust domain. ValueError if that cannot be its name."""
        check_domain(domain)
        ring = cls(domain, (), dict.fromkeys(TrustClass, ()), terms)
        return ring._with_root(now, now, timedelta(0))

    def authority(self, now: datetime) -> Authority:
        """Who signs now, with the bundle of all who are believed."""
        signing = {each: _signing(line, now) for each, line in self.intermediates.items()}
        return Authority(
            self.domain,
            self.roots[-1].certificate,
            {each: (generation.certificate, generation.key) for each, generation in signing.items()},
            self.bundle(now),
        )

    def bundle(self, now: datetime) -> TrustBundle:
        """Whom to trust now: those to come, those who sign, and those whose leaves have not run out."""
        kept = self._dropped(now)
        files = {"ca.crt": pem(*(each.certificate for each in kept.roots)).decode()}
        for each, line in kept.intermediates.items():
            files[f"{each.value}.crt"] = pem(*(generation.certificate for generation in line)).decode()
        return TrustBundle(files)

    def rotated(
        self, which: TrustClass | None, now: datetime, *, overlap: timedelta | None = None
    ) -> Keyring:
        """The keyring with a successor for an intermediate, or (None) for the root and with it for all.
        PreconditionError while the last rotation still waits to sign."""
        ring = self._dropped(now)
        lines = [ring.intermediates[which]] if which else list(ring.intermediates.values())
        waiting = max(line[-1].signs_from for line in lines)
        if waiting > now:
            raise PreconditionError(f"a rotation is under way; the next can begin at {waiting:%FT%TZ}")
        signs_from = now + (self.terms.overlap if overlap is None else overlap)
        ends = self.terms.leaf + _SKEW
        if which is None:
            return ring._with_root(now, signs_from, ends)
        return ring._with_intermediate(which, now, signs_from, ends)

    def upkept(self, now: datetime) -> Keyring:
        """The keyring with what is past dropped, and with a successor for whatever has lived two thirds of
        its life; itself if nothing is to be done."""
        ring = self._dropped(now)
        if _due(ring.roots[-1], now) and all(_idle(line, now) for line in ring.intermediates.values()):
            ring = ring.rotated(None, now)
        for each, line in ring.intermediates.items():
            if _due(line[-1], now) and _idle(line, now):
                ring = ring.rotated(each, now)
        return ring

    def _dropped(self, now: datetime) -> Keyring:
        kept = {each: _believed(line, now) for each, line in self.intermediates.items()}
        roots = tuple(
            root
            for root in self.roots
            if root is self.roots[-1]
            or any(signed(each.certificate, root.certificate) for line in kept.values() for each in line)
        )
        if len(roots) == len(self.roots) and kept == dict(self.intermediates):
            return self
        return replace(self, roots=roots, intermediates=kept)

    def _with_root(self, now: datetime, signs_from: datetime, after: timedelta) -> Keyring:
        key = new_key()
        certificate = authority_certificate(
            self.domain, "root", key, None, start=now, end=now + self.terms.root
        )
        ring = replace(self, roots=(*self.roots, Generation(certificate, key, signs_from)))
        for each in TrustClass:
            ring = ring._with_intermediate(each, now, signs_from, after)
        return ring

    def _with_intermediate(
        self, which: TrustClass, now: datetime, signs_from: datetime, after: timedelta
    ) -> Keyring:
        root, key = self.roots[-1], new_key()
        certificate = authority_certificate(
            self.domain,
            which.value,
            key,
            (root.certificate, root.key),
            start=now,
            end=min(now + self.terms.intermediate, root.certificate.not_valid_after_utc),
        )
        *before, last = (*self.intermediates[which], Generation(certificate, key, signs_from))
        ending = [replace(each, ends=each.ends or signs_from + after) for each in before]
        return replace(self, intermediates={**self.intermediates, which: (*ending, last)})


def _signing(line: tuple[Generation, ...], now: datetime) -> Generation:
    """The newest that may sign; the oldest before its time, since clocks differ."""
    return next((each for each in reversed(line) if each.signs_from <= now), line[0])


def _believed(line: tuple[Generation, ...], now: datetime) -> tuple[Generation, ...]:
    return tuple(each for each in line if each.ends is None or now < each.ends)


def _idle(line: tuple[Generation, ...], now: datetime) -> bool:
    return line[-1].signs_from <= now


def _due(generation: Generation, now: datetime) -> bool:
    start = generation.certificate.not_valid_before_utc
    return now >= start + (generation.certificate.not_valid_after_utc - start) * 2 / 3
