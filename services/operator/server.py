"""OperatorService: what the operator does with an object, and why."""

from __future__ import annotations

import time
from collections.abc import Callable

from agentctl.operator.v1 import operator_service_pb2 as pb
from agentctl.operator.v1 import operator_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster, Object
from libs.cluster.kinds import LEASE
from libs.cluster.lease import NotLeadingError
from libs.documents import document_of, struct_of
from libs.errors import InvalidError, NotFoundError, UnavailableError
from libs.identity import Principal
from libs.rpc.call import Call

from .cache import OWNERS, Cache
from .controller import Controller
from .key import Key
from .reconciler import Reconciler

LEASE_NAME = "agentctl-operator"

_MOST_FAILING = 100
_KINDS = {kind.name: kind for kind in OWNERS}
_ACTIONS = {
    "create": pb.RENDER_ACTION_CREATE,
    "update": pb.RENDER_ACTION_UPDATE,
    "recreate": pb.RENDER_ACTION_RECREATE,
    "none": pb.RENDER_ACTION_NONE,
    "delete": pb.RENDER_ACTION_DELETE,
}


class OperatorServer(pb_grpc.OperatorServiceServicer):
    """The servicer. A user acts in its own namespace only; what one may not see is not found."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        controller: Controller,
        reconciler: Reconciler,
        leading: Callable[[], bool],
        namespace: str,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._controller = controller
        self._reconciler = reconciler
        self._leading = leading
        self._namespace = namespace

    async def Render(self, request: pb.RenderRequest, context: object) -> pb.RenderResponse:
        thing = self._declared(document_of(request.object), context)
        preview = self._reconciler.preview(thing)
        return pb.RenderResponse(
            objects=[
                pb.RenderedObject(
                    object=struct_of(step.thing), action=_ACTIONS[step.action], reason=step.reason
                )
                for step in preview.steps
            ],
            problems=[f"{problem.reason}: {problem.message}" for problem in preview.problems],
        )

    async def Reconcile(self, request: pb.ReconcileRequest, context: object) -> pb.ReconcileResponse:
        key = self._key(request.kind, request.namespace, request.name, context)
        if self._cache.get(key.kind, key.namespace, key.name) is None:
            raise NotFoundError(f"no {key}")
        if not self._leading():
            leader = await self._leader()
            raise NotLeadingError(f"{leader} leads: ask it" if leader else "nobody leads yet: ask again")
        began = time.perf_counter()
        done = await self._controller.reconcile_now(key)
        response = pb.ReconcileResponse(write_count=done.writes, conditions=self._conditions(key))
        response.took.FromNanoseconds(int(max(0.0, (done.last_write_at or began) - began) * 1e9))
        return response

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        mine = _namespace_of(context)
        response = pb.GetStatusResponse(
            leading=self._leading(),
            leader=await self._leader(),
            queue_depths=self._controller.depths(mine),
            cached_counts=self._cache.counts(mine),
            failing=self._failing(mine),
        )
        response.cache_age.FromNanoseconds(int(min(max(self._cache.ages().values()), 1e9) * 1e9))
        return response

    def _declared(self, given: Object, context: object) -> Object:
        """The object to render: as given, as far as it says what it should be; else the one that is there."""
        metadata = given.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        kind, namespace, name = given.get("kind"), metadata.get("namespace"), metadata.get("name")
        if not all(isinstance(word, str) and word for word in (kind, namespace, name)):
            raise InvalidError(violations={"object": "must have kind, metadata.namespace and metadata.name"})
        key = self._key(str(kind), str(namespace), str(name), context)
        there = self._cache.get(key.kind, key.namespace, key.name)
        if "spec" not in given:
            if there is None:
                raise NotFoundError(f"no {key}")
            return there
        return {
            **(there or {"metadata": {}}),
            **{name: value for name, value in given.items() if name != "status"},
            "apiVersion": key.kind.api_version,
            "metadata": {**(there or {"metadata": {}})["metadata"], **metadata},
        }

    def _key(self, kind: str, namespace: str, name: str, context: object) -> Key:
        if kind not in _KINDS:
            raise InvalidError(violations={"kind": f"must be one of {', '.join(_KINDS)}"})
        mine = _namespace_of(context)
        if mine is not None and namespace != mine:
            raise NotFoundError(f"no {kind} {namespace}/{name}")
        return Key(_KINDS[kind], namespace, name)

    def _conditions(self, key: Key) -> list[str]:
        thing = self._cache.get(key.kind, key.namespace, key.name) or {}
        return [
            f"{each['type']}={each['status']} {each['reason']}: {each['message']}"
            for each in (thing.get("status") or {}).get("conditions", ())
        ]

    def _failing(self, namespace: str | None) -> list[str]:
        found = [
            f"{work}: {error}"
            for work, error in self._controller.failing.items()
            if namespace in (None, work.namespace)
        ]
        return found[:_MOST_FAILING]

    async def _leader(self) -> str:
        try:
            lease = await self._cluster.get(LEASE, self._namespace, LEASE_NAME)
        except (NotFoundError, UnavailableError):
            return ""
        return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _namespace_of(context: object) -> str | None:
    """The one namespace that the caller acts in; None: all."""
    caller: Principal = Call.of(context).caller
    return caller.namespace or None
