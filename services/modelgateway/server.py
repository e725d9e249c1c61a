"""The servicer: the same calls as at the edge, and what they came to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb
from agentctl.modelgateway.v1 import modelgateway_service_pb2_grpc as pb_grpc
from libs.errors import DeniedError, ExhaustedError, InvalidError
from libs.identity import Kind, Principal
from libs.rpc.call import Call

from .asked import Operation
from .calls import Gateway
from .failures import ProviderError
from .objects import Objects
from .relay import DONE
from .store import Store
from .wire import budgets_to_pb, record_to_pb

MAX_BODY_BYTES = 3 * 1024 * 1024
_MOST_PAGE, _PAGE = 1000, 100
_REFUSAL_CHARACTERS = 500
_OPERATIONS = {
    pb.OPERATION_CHAT_COMPLETIONS: Operation.CHAT,
    pb.OPERATION_RESPONSES: Operation.RESPONSES,
    pb.OPERATION_EMBEDDINGS: Operation.EMBEDDINGS,
}


class ModelGateway(pb_grpc.ModelGatewayServiceServicer):
    """Over a gateway and its store."""

    def __init__(self, gateway: Gateway, objects: Objects, store: Store) -> None:
        self._gateway = gateway
        self._objects = objects
        self._store = store

    async def Infer(self, request: pb.InferRequest, context: object) -> pb.InferResponse:
        answer = await self._gateway.call(
            Call.of(context).caller,
            _operation(request),
            request.body,
            pool=request.pool,
            streams=False,
        )
        if answer.error and answer.error != "refused":
            raise ProviderError(f"endpoint {answer.endpoint} answered {answer.status}", answer.error)
        return pb.InferResponse(body=answer.body, status=answer.status, endpoint=answer.endpoint)

    async def InferStream(
        self, request: pb.InferStreamRequest, context: object
    ) -> AsyncIterator[pb.InferStreamResponse]:
        answer = await self._gateway.call(
            Call.of(context).caller,
            _operation(request),
            request.body,
            pool=request.pool,
            streams=True,
        )
        if answer.events is None:
            said = answer.body[:_REFUSAL_CHARACTERS].decode(errors="replace")
            message = f"endpoint {answer.endpoint} answered {answer.status}, not a stream: {said}"
            if answer.status == 429:
                raise ExhaustedError(message)
            if 400 <= answer.status < 500:
                raise InvalidError(message)
            raise ProviderError(message)
        async with aclosing(answer.events) as events:
            async for event in events:
                if event.data and event.data != DONE:
                    yield pb.InferStreamResponse(event=event.data)

    async def GetUsage(self, request: pb.GetUsageRequest, context: object) -> pb.GetUsageResponse:
        namespace = _namespace(Call.of(context).caller, request.namespace)
        pools = [each for each in self._objects.pools(namespace) if request.pool in ("", each.name)]
        usage = await self._store.usage(namespace, request.pool)
        return pb.GetUsageResponse(budgets=budgets_to_pb(pools, usage))

    async def ListCalls(self, request: pb.ListCallsRequest, context: object) -> pb.ListCallsResponse:
        namespace = _namespace(Call.of(context).caller, request.namespace)
        size = request.page_size or _PAGE
        if not 1 <= size <= _MOST_PAGE:
            raise InvalidError(violations={"page_size": f"must be 1 to {_MOST_PAGE}, or 0 for {_PAGE}"})
        page = await self._store.calls(
            namespace, request.pool, request.agent, size=size, token=request.page_token
        )
        return pb.ListCallsResponse(
            calls=[record_to_pb(each) for each in page.records], next_page_token=page.next
        )


def _operation(request: pb.InferRequest | pb.InferStreamRequest) -> Operation:
    if request.operation not in _OPERATIONS:
        raise InvalidError(violations={"operation": "must be one that is known"})
    if len(request.body) > MAX_BODY_BYTES:
        raise InvalidError(violations={"body": f"has at most {MAX_BODY_BYTES} bytes"})
    return _OPERATIONS[request.operation]


def _namespace(caller: Principal, asked: str) -> str:
    if caller.kind is Kind.ADMINISTRATOR:
        if not asked:
            raise InvalidError(violations={"namespace": "administrators have none of their own: name one"})
        return asked
    if asked not in ("", caller.namespace):
        raise DeniedError("only administrators may look at another namespace")
    return caller.namespace
