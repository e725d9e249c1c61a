"""ManagementService: the verbs for callers of the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.cluster import Bearer
from libs.cluster.bearers import bearer_of
from libs.errors import MeshError, NotFoundError
from libs.rpc.call import Call

from . import wire
from .management import Management, audited
from .verbs import STATUS, Target, Verb

_MARGIN = 0.2  # seconds before the caller's deadline in which the answer has to leave


class ManagementServer(pb_grpc.ManagementServiceServicer):
    """The servicer. A user acts in its own namespace only; what one may not see is not found."""

    def __init__(self, management: Management) -> None:
        self._management = management

    async def Drain(self, request: pb.DrainRequest, context: object) -> pb.DrainResponse:
        return pb.DrainResponse(report=await self._act(Verb.DRAIN, request, context))

    async def LameDuck(self, request: pb.LameDuckRequest, context: object) -> pb.LameDuckResponse:
        return pb.LameDuckResponse(report=await self._act(Verb.LAME_DUCK, request, context))

    async def Cancel(self, request: pb.CancelRequest, context: object) -> pb.CancelResponse:
        return pb.CancelResponse(report=await self._act(Verb.CANCEL, request, context))

    async def Pause(self, request: pb.PauseRequest, context: object) -> pb.PauseResponse:
        return pb.PauseResponse(report=await self._act(Verb.PAUSE, request, context))

    async def Resume(self, request: pb.ResumeRequest, context: object) -> pb.ResumeResponse:
        return pb.ResumeResponse(report=await self._act(Verb.RESUME, request, context))

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        with _admitted(STATUS, request.target, context) as (bearer, target):
            pass
        with self._management.places.taken(bearer.username):
            pods = await self._management.status(bearer, target, within=_within(context))
        return wire.statuses_to_pb(pods)

    async def _act(self, verb: Verb, request: wire.VerbRequest, context: object) -> pb.Report:
        with _admitted(verb, request.target, context) as (bearer, target):
            order = wire.order_from_pb(verb, target, request)
        with self._management.places.taken(bearer.username):
            report = await self._management.act(bearer, order, within=_within(context))
        return wire.report_to_pb(report)


@contextmanager
def _admitted(verb: str, said: pb.Target, context: object) -> Iterator[tuple[Bearer, Target]]:
    """Who calls, to RBAC, and for whom, while the block reads what else it asks for. A refusal is audited."""
    caller = Call.of(context).caller
    bearer = bearer_of(caller)
    try:
        target = wire.target_from_pb(said)
        target.check()
        if caller.namespace not in ("", target.namespace):
            raise NotFoundError(f"no such object: {target}")
        yield bearer, target
    except MeshError:
        with audited(bearer, verb, wire.named(said), verb):
            raise


def _within(context: object) -> float:
    return Call.of(context).time_remaining() - _MARGIN
