"""Whom a member of the mesh trusts, as the texts of files and of a published ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from libs.identity import TrustClass

from .certificates import signed, uri

_ROOT = "ca.crt"


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """File name → PEM: ca.crt holds the roots, <class>.crt the pinned intermediates of a trust class. Several
    certificates stand in one while it is being replaced."""

    files: Mapping[str, str]

    @classmethod
    def of(cls, files: Mapping[str, str]) -> TrustBundle:
        """The bundle among these files. ValueError if one is missing or is not PEM, or if the roots are not
        of one trust domain."""
        names = [_ROOT, *(f"{each.value}.crt" for each in TrustClass)]
        if missing := [name for name in names if not files.get(name)]:
            raise ValueError(f"the trust bundle lacks {', '.join(missing)}")
        bundle = cls({name: files[name] for name in names})
        for text in bundle.files.values():
            x509.load_pem_x509_certificates(text.encode())
        _ = bundle.domain
        return bundle

    @classmethod
    def read(cls, folder: Path) -> TrustBundle:
        """The bundle that a folder holds. OSError, or ValueError as `of`."""
        names = [_ROOT, *(f"{each.value}.crt" for each in TrustClass)]
        return cls.of({name: (folder / name).read_text() for name in names})

    @property
    def root(self) -> str:
        """The roots."""
        return self.files[_ROOT]

    def pins(self, trust_class: TrustClass) -> str:
        """The intermediates of a class."""
        return self.files[f"{trust_class.value}.crt"]

    @property
    def domain(self) -> str:
        """The trust domain of the roots."""
        return domain_of(self.root)

    def vouches(self, trust_class: TrustClass, leaf: x509.Certificate) -> bool:
        """Whether a pinned intermediate of the class signed this leaf."""
        pins = x509.load_pem_x509_certificates(self.pins(trust_class).encode())
        return any(signed(leaf, pin) for pin in pins)


def domain_of(roots_pem: str) -> str:
    """The trust domain that the roots say they are of. ValueError unless it is one."""
    domains = {uri(each) for each in x509.load_pem_x509_certificates(roots_pem.encode())}
    if len(domains) != 1:
        raise ValueError(f"the roots are of several trust domains: {', '.join(sorted(domains))}")
    return domains.pop().removeprefix("spiffe://")
