"""Who calls: every principal of a mesh by an authority made for one run of the suite, or the one we have."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Protocol

from libs import pki
from libs.identity import Identity, Kind, Principal
from libs.pki import Authority

from .case import SkippedError

DOMAIN = "conformance.test"
NAMESPACE, OTHER_NAMESPACE = "demo", "other"
AGENT, NEIGHBOUR = "subject", "neighbour"
_POD = f"{AGENT}-0"
_UID = "5d0f6a52-0c1e-4c55-9d62-3f6f0a3f7c11"
_LIFETIME = timedelta(hours=12)

STEERING = ("cp/apiserver", "cp/gateway")
_PATHS = {
    **{role: f"/{role}" for role in (*STEERING, "cp/operator", "cp/coordination", "cp/scaler")},
    "subject": f"/ns/{NAMESPACE}/agent/{AGENT}/pod/{_POD}/{_UID}",
    "subject's other pod": f"/ns/{NAMESPACE}/agent/{AGENT}/pod/{AGENT}-1/uid-of-another-pod",
    "agent": f"/ns/{NAMESPACE}/agent/{NEIGHBOUR}/pod/{NEIGHBOUR}-0/uid-neighbour",
    "agent of another namespace": f"/ns/{OTHER_NAMESPACE}/agent/{AGENT}/pod/{_POD}/uid-foreign",
    "producer": f"/ns/{NAMESPACE}/producer/source",
    "user": f"/ns/{NAMESPACE}/user/ann",
    "user of another namespace": f"/ns/{OTHER_NAMESPACE}/user/bob",
    "administrator": "/user/root",
}


class Identities(Protocol):
    """Certificates to call with."""

    def of(self, role: str) -> Identity:
        """The certificate of a role. SkippedError if we have none."""

    def steering(self) -> str:
        """A role that may use the verbs. SkippedError."""

    def watching(self) -> str:
        """A role that may read. SkippedError."""


class Minted:
    """All of them, in this folder. `stranger` is `cp/apiserver` of another trust domain."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority.create(folder / "authority", DOMAIN)
        self._made: dict[str, Identity] = {}

    def of(self, role: str) -> Identity:
        if role not in self._made:
            self._made[role] = self._stranger() if role == "stranger" else self._issue(role)
        return self._made[role]

    def principal(self, role: str) -> Principal:
        """Who that is."""
        return Principal.parse(f"spiffe://{DOMAIN}{_PATHS[role]}")

    def steering(self) -> str:
        return STEERING[0]

    def watching(self) -> str:
        return STEERING[0]

    def _issue(self, role: str) -> Identity:
        folder = self._folder / f"identity-{len(self._made)}"
        return self.authority.issue(self.principal(role).id, folder, lifetime=_LIFETIME)

    def _stranger(self) -> Identity:
        """Another authority's certificate, with our root, so that it believes the agent at least."""
        folder = self._folder / "stranger"
        foreign = Authority.create(self._folder / "foreign", "stranger.test")
        identity = foreign.issue("spiffe://stranger.test/cp/apiserver", folder, lifetime=_LIFETIME)
        for name in ("ca.crt", "control-plane.crt", "workloads.crt", "users.crt"):
            (folder / name).write_bytes((self.of("cp/apiserver").folder / name).read_bytes())
        return identity


class Only:
    """The one that the command has."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._own = pki.own(identity)
        self._role = "administrator" if self._own.kind is Kind.ADMINISTRATOR else self._own.role

    def of(self, role: str) -> Identity:
        if role != self._role:
            raise SkippedError(f"needs a certificate as {role}; ours is {self._own.id}")
        return self._identity

    def steering(self) -> str:
        if self._role not in STEERING:
            raise SkippedError(f"only {' and '.join(STEERING)} may; we are {self._own.id}")
        return self._role

    def watching(self) -> str:
        return self._role
