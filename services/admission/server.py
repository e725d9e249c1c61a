"""AdmissionService: the rules by gRPC."""

from __future__ import annotations

from google.protobuf.struct_pb2 import Struct

from agentctl.admission.v1 import admission_service_pb2 as pb
from agentctl.admission.v1 import admission_service_pb2_grpc as pb_grpc
from libs.cluster import Bearer, Object
from libs.cluster.bearers import bearer_of
from libs.documents import document_of
from libs.errors import DeniedError, InvalidError, NotFoundError
from libs.identity import Principal
from libs.mesh import PLANE
from libs.rpc.call import Call

from .reviewing import LONGEST_SECONDS, MARGIN_SECONDS, Question, Reviewer
from .wire import verdict_to_pb

_MOST_BYTES = 1024 * 1024


class AdmissionServer(pb_grpc.AdmissionServiceServicer):
    """The servicer. A user asks about its own namespace only."""

    def __init__(self, reviewer: Reviewer) -> None:
        self._reviewer = reviewer

    async def Review(self, request: pb.ReviewRequest, context: object) -> pb.ReviewResponse:
        call = Call.of(context)
        author = _author(request, call.caller)
        thing = _document(request.object, "object")
        old = _document(request.old_object, "old_object") if request.HasField("old_object") else None
        _check_namespace(call.caller, thing, old)
        within = min(call.time_remaining() - MARGIN_SECONDS, LONGEST_SECONDS)
        is_dry_run = request.dry_run or call.caller.role != PLANE.role
        question = Question("grpc", thing, old, author, within, is_dry_run)
        return verdict_to_pb(await self._reviewer.review(question))


def _author(request: pb.ReviewRequest, caller: Principal) -> Bearer:
    """Who wants it: whom the plane names, else the caller."""
    if caller.role == PLANE.role:
        if not request.author.username:
            raise InvalidError(violations={"author": "is required: the plane declares nothing itself"})
        return Bearer(request.author.username, tuple(request.author.groups))
    if request.HasField("author"):
        raise DeniedError("only the plane may ask for another author")
    return bearer_of(caller)


def _document(struct: Struct, field: str) -> Object:
    if (size := struct.ByteSize()) > _MOST_BYTES:
        raise InvalidError(violations={field: f"{size} bytes; {_MOST_BYTES} are allowed"})
    return document_of(struct)


def _check_namespace(caller: Principal, *things: Object | None) -> None:
    for thing in things:
        metadata = thing.get("metadata") if thing else None
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        if caller.namespace and namespace and namespace != caller.namespace:
            raise NotFoundError("no such namespace")
