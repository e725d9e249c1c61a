"""ResourceService: the local home's objects over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

from google.protobuf.struct_pb2 import Struct

from agentctl.admission.v1 import admission_service_pb2 as admission
from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1 import resource_service_pb2_grpc as pb_grpc
from libs.cluster import Bearer, Change, Cluster, Log, Object
from libs.cluster.bearers import bearer_of
from libs.cluster.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    OURS,
    POD_METRICS,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    kind_named,
    kind_of,
)
from libs.documents import document_of, struct_of
from libs.errors import DeniedError, InvalidError, NotFoundError
from libs.identity import Principal
from libs.resources.names import COORDINATOR
from libs.rpc.call import Call
from services.admission.verdict import Finding
from services.admission.wire import is_about_rights, listed

from .usage import Usage

WRITABLE = (*OURS, NAMESPACE, CONFIG_MAP, SECRET, SERVICE_ACCOUNT)
"""The kinds that people may apply and delete; the others are made by the plane."""

_MANAGER = "agentctl"
_SCALE = "agentctl-scale"  # a person's, by `agentctl scale`
_MOST_OBJECTS = 500
_TOKEN_SECONDS, _SHORTEST_TOKEN, _LONGEST_TOKEN = 3600, 600, 86400
_CHANGES = {
    "ADDED": pb.CHANGE_TYPE_ADDED,
    "MODIFIED": pb.CHANGE_TYPE_MODIFIED,
    "DELETED": pb.CHANGE_TYPE_DELETED,
    "BOOKMARK": pb.CHANGE_TYPE_BOOKMARK,
}


class Reviewing(Protocol):
    """Says whether an object may be declared: a stub of AdmissionService."""

    def Review(self, request: admission.ReviewRequest, /) -> Awaitable[admission.ReviewResponse]:
        """The verdict. UnavailableError."""


class Resources(pb_grpc.ResourceServiceServicer):
    """The servicer. A user of one namespace sees that namespace only; an administrator sees all. What people
    declare is `reviewing`'s to judge first, if there is one."""

    def __init__(self, cluster: Cluster, usage: Usage, reviewing: Reviewing | None = None) -> None:
        self._cluster = cluster
        self._usage = usage
        self._reviewing = reviewing
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def Apply(self, request: pb.ApplyRequest, context: object) -> pb.ApplyResponse:
        thing = document_of(request.object)
        kind, namespace, name = _target(thing)
        _check(_caller(context), kind, namespace)
        _check_writable(kind)
        if request.field_manager.startswith("agentctl-") and request.field_manager != _SCALE:
            raise InvalidError(
                violations={"field_manager": "names that begin with agentctl- are the plane's"}
            )
        manager = request.field_manager or _MANAGER
        turn = namespace, name.partition(COORDINATOR)[0]  # of all whose pods might go by the same name
        async with self._turns.setdefault(turn, asyncio.Lock()):  # nobody between the two
            before = await self._find(kind, namespace, name)
            warnings: list[str] = []
            if self._reviewing and kind in OURS:
                author = bearer_of(_caller(context))
                wanted = await self._cluster.apply(thing, manager, dry_run=True)
                question = _question(wanted, before, author, dry_run=request.dry_run)
                said = await self._reviewing.Review(question)
                _check_allowed(wanted, said)
                _patch(thing, said.patch)
                warnings = [str(each) for each in _findings(said.warnings)]
            after = await self._cluster.apply(thing, manager, dry_run=request.dry_run)
        return pb.ApplyResponse(
            object=struct_of(after),
            created=before is None,
            changed=before is None or _content(before) != _content(after),
            warnings=warnings,
        )

    async def Get(self, request: pb.GetRequest, context: object) -> pb.GetResponse:
        kind = _kind(request.kind)
        _check(_caller(context), kind, request.namespace)
        if not request.name:
            raise InvalidError(violations={"name": "is empty"})
        return pb.GetResponse(
            object=struct_of(await self._cluster.get(kind, request.namespace, request.name))
        )

    async def List(self, request: pb.ListRequest, context: object) -> pb.ListResponse:
        kind = _kind(request.kind)
        namespace = _scope(_caller(context), kind, request.namespace)
        size = request.page_size or _MOST_OBJECTS
        if not 1 <= size <= _MOST_OBJECTS:
            raise InvalidError(violations={"page_size": f"1 to {_MOST_OBJECTS}"})
        if kind == POD_METRICS:
            pods = await self._usage.of(namespace, request.label_selector)
            return pb.ListResponse(objects=map(struct_of, pods))
        listing = await self._cluster.list(kind, namespace, request.label_selector)
        found = sorted((f"{_namespace(each)}/{each['metadata']['name']}", each) for each in listing.items)
        rest = [(key, each) for key, each in found if key > request.page_token]
        page = rest[:size]
        return pb.ListResponse(
            objects=[struct_of(each) for _, each in page],
            revision=listing.revision,
            next_page_token=page[-1][0] if len(rest) > size else "",
        )

    async def Watch(self, request: pb.WatchRequest, context: object) -> AsyncIterator[pb.WatchResponse]:
        kind = _kind(request.kind)
        namespace = _scope(_caller(context), kind, request.namespace)
        since = request.revision or (await self._cluster.list(kind, namespace)).revision
        changes: AsyncIterator[Change] = self._cluster.watch(
            kind, namespace, request.label_selector, since=since
        )
        async for change in changes:
            yield pb.WatchResponse(type=_CHANGES[change.type], object=struct_of(change.object))

    async def Delete(self, request: pb.DeleteRequest, context: object) -> pb.DeleteResponse:
        kind = _kind(request.kind)
        _check(_caller(context), kind, request.namespace)
        _check_writable(kind)
        await self._cluster.delete(kind, request.namespace, request.name, uid=request.uid)
        return pb.DeleteResponse()

    async def GetLogs(self, request: pb.GetLogsRequest, context: object) -> AsyncIterator[pb.GetLogsResponse]:
        _check_namespace(_caller(context), request.namespace)
        if request.tail_lines < 0:
            raise InvalidError(violations={"tail_lines": "0 or more"})
        log = Log(
            request.namespace,
            request.pod,
            follow=request.follow,
            tail=request.tail_lines or None,
            previous=request.previous,
        )
        async for data in self._cluster.logs(log):
            yield pb.GetLogsResponse(data=data)

    async def CreateToken(self, request: pb.CreateTokenRequest, context: object) -> pb.CreateTokenResponse:
        _check_namespace(_caller(context), request.namespace)
        seconds = request.lifetime.seconds if request.HasField("lifetime") else _TOKEN_SECONDS
        violations = {
            name: "is empty"
            for name in ("namespace", "service_account", "audience")
            if not getattr(request, name)
        }
        if not _SHORTEST_TOKEN <= seconds <= _LONGEST_TOKEN:
            violations["lifetime"] = "10 minutes to 24 hours"
        if violations:
            raise InvalidError(violations=violations)
        token = await self._cluster.issue_token(
            request.namespace, request.service_account, request.audience, seconds
        )
        return pb.CreateTokenResponse(token=token)

    async def _find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self._cluster.get(kind, namespace, name)
        except NotFoundError:
            return None


def _question(
    wanted: Object, before: Object | None, author: Bearer, *, dry_run: bool
) -> admission.ReviewRequest:
    return admission.ReviewRequest(
        object=struct_of(wanted),
        old_object=struct_of(before) if before else None,
        author=admission.Author(username=author.username, groups=author.groups),
        dry_run=dry_run,
    )


def _check_allowed(wanted: Object, said: admission.ReviewResponse) -> None:
    """DeniedError if the author may not name what he names, InvalidError for all else that is wrong."""
    if said.allowed:
        return
    denials = _findings(said.denials)
    message = f'The {wanted["kind"]} "{wanted["metadata"]["name"]}" is denied: {listed(denials)}'
    if is_about_rights(denials):
        raise DeniedError(message)
    violations: dict[str, str] = {}
    for each in denials:
        why = f"{each.message}; {each.mend}"
        violations[each.field] = f"{violations[each.field]}; {why}" if each.field in violations else why
    raise InvalidError(message, violations)


def _findings(answered: Iterable[admission.Finding]) -> list[Finding]:
    return [Finding(each.rule, each.field, each.value, each.message, each.mend) for each in answered]


def _patch(thing: Object, operations: Iterable[admission.PatchOperation]) -> None:
    """Adds what the operations add, and objects on the way there, to an object that says only a part."""
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation.path.split("/")[1:]
        ]
        place = thing
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = document_of(Struct(fields={"value": operation.value}))["value"]


def _target(thing: Object) -> tuple[Kind, str, str]:
    """The kind, namespace and name of an object to apply. InvalidError names what is missing."""
    metadata = thing.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    named = {
        "apiVersion": thing.get("apiVersion"),
        "kind": thing.get("kind"),
        "metadata.name": metadata.get("name"),
    }
    if missing := {field: "is required" for field, value in named.items() if not isinstance(value, str)}:
        raise InvalidError(violations=missing)
    try:
        kind = kind_of(thing["apiVersion"], thing["kind"])
    except KeyError:
        raise InvalidError(
            violations={"kind": f"{thing['apiVersion']} {thing['kind']} is no kind of the local home"}
        ) from None
    namespace = metadata.get("namespace") or ""
    if kind.namespaced != bool(namespace):
        raise InvalidError(
            violations={"metadata.namespace": "is required" if kind.namespaced else "must be empty"}
        )
    return kind, namespace, metadata["name"]


def _kind(word: str) -> Kind:
    try:
        return kind_named(word)
    except KeyError:
        raise InvalidError(violations={"kind": f"{word!r} is no kind of the local home"}) from None


def _check_writable(kind: Kind) -> None:
    if kind not in WRITABLE:
        allowed = ", ".join(each.name for each in WRITABLE)
        raise DeniedError(f"{kind.name} objects are made by the plane; people write {allowed}")


def _caller(context: object) -> Principal:
    return Call.of(context).caller


def _check(caller: Principal, kind: Kind, namespace: str) -> None:
    if kind.namespaced and not namespace:
        raise InvalidError(violations={"namespace": "is empty"})
    _check_namespace(caller, namespace)


def _check_namespace(caller: Principal, namespace: str) -> None:
    if caller.namespace and caller.namespace != namespace:
        raise NotFoundError(f"no namespace {namespace}" if namespace else "only administrators see that")


def _scope(caller: Principal, kind: Kind, namespace: str) -> str:
    """The namespace to look at; empty: all of them."""
    if caller.namespace and kind.namespaced and not namespace:
        return caller.namespace
    _check_namespace(caller, namespace)
    return namespace


def _namespace(thing: Object) -> str:
    return str(thing["metadata"].get("namespace", ""))


def _content(thing: Object) -> Object:
    bookkeeping = ("resourceVersion", "managedFields", "generation")
    metadata = {name: value for name, value in thing["metadata"].items() if name not in bookkeeping}
    return {**thing, "metadata": metadata}
