"""Who is who: SPIFFE ids as principals, and the files of our own certificate.

A principal is what the URI SAN of a leaf certificate says and nothing else. Which intermediate may
vouch for it is its trust class; `libs.pki` checks that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

_DOMAIN = r"spiffe://(?P<domain>[a-z0-9][a-z0-9.-]{0,253})"
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
"""A DNS label, which a namespace is: a pattern to build others of."""

_LABELS = re.compile(rf"{LABEL}(?:\.{LABEL})*")
_LONGEST_DNS_NAME = 253  # RFC 1035, 2.3.4, as text
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_PATTERNS = {
    "component": re.compile(rf"{_DOMAIN}/cp/(?P<name>{LABEL})"),
    "agent": re.compile(
        rf"{_DOMAIN}/ns/(?P<namespace>{LABEL})/agent/(?P<name>{_NAME})"
        rf"/pod/(?P<pod>{_NAME})/(?P<uid>[A-Za-z0-9-]{{1,64}})"
    ),
    "producer": re.compile(rf"{_DOMAIN}/ns/(?P<namespace>{LABEL})/producer/(?P<name>{_NAME})"),
    "user": re.compile(rf"{_DOMAIN}/ns/(?P<namespace>{LABEL})/user/(?P<name>{_NAME})"),
    "administrator": re.compile(rf"{_DOMAIN}/user/(?P<name>{_NAME})"),
}


class TrustClass(StrEnum):
    """One intermediate authority each; the value is also its file name."""

    CONTROL_PLANE = "control-plane"
    WORKLOADS = "workloads"
    USERS = "users"


class Kind(StrEnum):
    """The kinds of principal, as `libs.mesh` names them."""

    COMPONENT = "component"
    AGENT = "agent"
    PRODUCER = "producer"
    USER = "user"
    ADMINISTRATOR = "administrator"


_CLASSES = {
    Kind.COMPONENT: TrustClass.CONTROL_PLANE,
    Kind.AGENT: TrustClass.WORKLOADS,
    Kind.PRODUCER: TrustClass.USERS,
    Kind.USER: TrustClass.USERS,
    Kind.ADMINISTRATOR: TrustClass.USERS,
}


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: `/cp/<name>`, `/ns/<ns>/agent/<name>/pod/<pod>/<uid>`,
    `/ns/<ns>/producer/<name>`, `/ns/<ns>/user/<name>` or `/user/<name>`, under a trust domain.
    """

    id: str
    kind: Kind
    domain: str
    name: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    role: str = field(init=False)  # the word `libs.mesh` uses: a kind, or cp/<component>

    def __post_init__(self) -> None:
        role = f"cp/{self.name}" if self.kind is Kind.COMPONENT else self.kind.value
        object.__setattr__(self, "role", role)

    @property
    def trust_class(self) -> TrustClass:
        return _CLASSES[self.kind]

    @property
    def dns_name(self) -> str:
        """What gRPC clients verify of a server: `coordination.cp.<domain>`, and of an agent's pod
        `<uid>.<name>.agent.<namespace>.ns.<domain>`: no two servers have the same.

        ValueError for who is nobody's server, and for ids that make no DNS name, as one with capitals, which
        DNS would not tell from another's.
        """
        match self.kind:
            case Kind.COMPONENT:
                name = f"{self.name}.cp.{self.domain}"
            case Kind.AGENT:
                name = f"{self.uid}.{self.name}.agent.{self.namespace}.ns.{self.domain}"
            case _:
                raise ValueError(f"{self.id} is nobody's server")
        if len(name) > _LONGEST_DNS_NAME:
            raise ValueError(
                f"{self.id} cannot serve: its DNS name has {len(name)} characters, "
                f"{_LONGEST_DNS_NAME} are possible"
            )
        if not _LABELS.fullmatch(name):
            raise ValueError(f"{self.id} cannot serve: {name} is not a DNS name in lower case")
        return name

    @classmethod
    def parse(cls, spiffe_id: str) -> Principal:
        """Raises ValueError when the id is of none of the known shapes."""
        for kind, pattern in _PATTERNS.items():
            if match := pattern.fullmatch(spiffe_id):
                return cls(id=spiffe_id, kind=Kind(kind), **match.groupdict())
        raise ValueError(f"not a principal of this mesh: {spiffe_id!r}")


@dataclass(frozen=True)
class Identity:
    """The folder that holds our certificate and whom we trust. Files are read anew when they change.

    tls.crt (leaf, then its intermediate), tls.key, ca.crt (the root), and one pinned intermediate per
    trust class: control-plane.crt, workloads.crt, users.crt.
    """

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def root(self) -> Path:
        return self.folder / "ca.crt"

    def intermediate(self, trust_class: TrustClass) -> Path:
        return self.folder / f"{trust_class.value}.crt"
