"""The port to the world of objects and pods: `Cluster`, with two homes.

`kubernetes` is a real API server; `local` is a SQLite file and a runner of child processes. One conformance
suite, `tests/test_conformance.py`, states in tests what this page says in words; both homes pass it.

Objects are JSON documents as the Kubernetes API has them (`Object`); a home never changes one that it was
given, and the caller owns what it gets. A missing object is a NotFoundError, never None. A home that cannot
be reached raises UnavailableError; what it refuses as malformed is an InvalidError that carries its words.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from libs.errors import InternalError, UnavailableError

from .kinds import Kind

Object = dict[str, Any]
"""A Kubernetes object, as its JSON."""

Propagation = Literal["Background", "Foreground", "Orphan"]


class ExpiredError(UnavailableError):
    """The history after that revision is gone (HTTP 410): list again."""

    reason = "EXPIRED"


class UnauthorisedError(InternalError):
    """The home refuses us: our RBAC, or our token. To our callers that is no answer about themselves: it
    crosses the wire as its base."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind at one moment, and the revision to watch from."""

    items: list[Object]
    revision: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells. A BOOKMARK has only metadata.resourceVersion."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token belongs to, as its issuer says."""

    username: str  # system:serviceaccount:<namespace>:<name>
    groups: tuple[str, ...] = ()
    uid: str = ""
    pod: str = ""  # name of the pod that the token is bound to; empty: none
    pod_uid: str = ""
    token_id: str = ""  # the same for every review of one token
    expires_at: float = float("inf")  # unix seconds
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def service_account(self) -> tuple[str, str]:
        """(namespace, name); ("", "") if it is not one."""
        parts = self.username.split(":")
        is_one = len(parts) == 4 and parts[:2] == ["system", "serviceaccount"]
        return (parts[2], parts[3]) if is_one else ("", "")


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody wants to do, as a SubjectAccessReview asks it."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """Which lines of a pod."""

    namespace: str
    pod: str
    container: str = ""
    follow: bool = False
    tail: int | None = None
    previous: bool = False


class Cluster(abc.ABC):
    """Objects, pods, and who people are. Every method is bounded in time by the home's own deadline."""

    @abc.abstractmethod
    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object now. NotFoundError."""

    @abc.abstractmethod
    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        """All of a kind: of one namespace, or of all (""), that match the label selector; with `name` only
        what is called so, for which a right to that name is enough."""

    @abc.abstractmethod
    def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", *, since: str = "", name: str = ""
    ) -> AsyncIterator[Change]:
        """Every change of what `list` would tell, after the revision `since`, in order, none twice, until
        cancelled; without `since`, first all that there is, as ADDED. It may end at any time: watch again
        from the last revision seen. ExpiredError when that is too old."""

    @abc.abstractmethod
    async def create(self, thing: Object) -> Object:
        """Makes it. ConflictError if there is one of that name; `metadata.generateName` is honoured.
        NotFoundError without its namespace, PreconditionError in one that is being deleted."""

    @abc.abstractmethod
    async def apply(
        self, thing: Object, manager: str, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Server-side apply, forced: makes it, or makes the fields that this manager named before and names
        now as said; what it names no more is removed unless another manager has it. The object after it; one
        that changes nothing keeps its resourceVersion. With subresource "status" only the status counts, and
        a missing object is a NotFoundError. InvalidError if it may not be so (an immutable field too)."""

    @abc.abstractmethod
    async def replace(self, thing: Object) -> Object:
        """Replaces it whole. ConflictError unless metadata.resourceVersion is the current one."""

    @abc.abstractmethod
    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background"
    ) -> None:
        """Deletes it and, by owner reference, what it owns. ConflictError if it has another uid by now. An
        object with finalizers stays, with deletionTimestamp, until they are gone."""

    @abc.abstractmethod
    async def review_token(self, token: str, audience: str) -> Bearer:
        """Who bears this token. UnauthenticatedError if it is forged, expired, for another audience, or bound
        to a pod or account that is gone. An empty audience is the API server's own; nobody has a token for
        that of the local home."""

    @abc.abstractmethod
    async def review_access(self, bearer: Bearer, access: Access) -> bool:
        """Whether RBAC lets the bearer do it."""

    @abc.abstractmethod
    async def issue_token(self, namespace: str, account: str, audience: str, seconds: int) -> str:
        """A token of a ServiceAccount, bound to no pod (TokenRequest). NotFoundError. An empty audience is
        the API server's own; the local home, which has none, refuses it (InvalidError)."""

    @abc.abstractmethod
    def logs(self, log: Log) -> AsyncIterator[bytes]:
        """A container's output in pieces as they come; to its end, or on and on with `follow`."""

    @abc.abstractmethod
    async def version(self) -> str:
        """What it is and that it answers, e.g. "Kubernetes v1.36.2"."""


def key_of(thing: Object) -> tuple[str, str]:
    """(namespace, name)."""
    metadata = thing["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def controller_of(thing: Object) -> Object | None:
    """The owner reference with `controller: true`, if there is one; a malformed one names nobody."""
    owners: Sequence[Any] = thing["metadata"].get("ownerReferences") or ()
    wanted = (owner for owner in owners if isinstance(owner, dict) and owner.get("controller") is True)
    owner = next(wanted, None)
    said = ("apiVersion", "kind", "name", "uid")
    return owner if owner and all(isinstance(owner.get(key), str) for key in said) else None
