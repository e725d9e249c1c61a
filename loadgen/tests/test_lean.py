"""The lean client against a server that is not ours: grpc.aio's."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs import pki
from libs.errors import UnavailableError
from libs.pki import Authority
from loadgen.channel import Target, bare
from loadgen.lean import connect
from loadgen.tally import Client

from .fake import FakeCoordination


class Odd(FakeCoordination):
    """Answers with as many bytes as were sent, refuses one queue, and never answers for another."""

    async def Claim(self, request, context):
        if request.queues[0] == "slow":
            await asyncio.sleep(60)
        if request.queues[0] == "refused":
            details = error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="agentctl.dev")
            status = status_pb2.Status(
                code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="zu voll: 50 % €"
            )
            status.details.add().Pack(details)
            await context.abort_with_status(rpc_status.to_status(status))
        return pb.ClaimResponse(grants=[work_pb2.Grant(item_id="one", payload=b"x" * request.max_bytes)])

    async def Submit(self, request, context):
        size = sum(len(item.payload) for item in request.items)
        return pb.SubmitResponse(verdicts=[pb.SubmitVerdict(item_id=f"{size}")])


def _name_of(target, component="coordination"):
    return f"{component}.cp.{pki.own(target.identity).domain}"


@pytest.fixture
def stub(serve):
    @asynccontextmanager
    async def open_stub():
        async with (
            serve(Odd()) as target,  # type: ignore[abstract]
            bare(target, Client.LEAN) as channel,
        ):
            yield pb_grpc.CoordinationServiceStub(channel)

    return open_stub


async def test_many_calls_at_once_get_each_its_own_answer(stub):
    async with stub() as it:
        sizes = range(1, 300)
        answers = await asyncio.gather(
            *(it.Claim(pb.ClaimRequest(queues=["a"], max_bytes=size), timeout=10) for size in sizes)
        )
    assert [len(answer.grants[0].payload) for answer in answers] == list(sizes)


async def test_messages_larger_than_every_window_pass_in_both_directions(stub):
    """A stream's window and all streams' is 64 KiB until the server says more, and a frame has 16 KiB."""
    async with stub() as it:
        for _ in range(3):
            items = [work_pb2.WorkItem(payload=b"y" * 1_000_000) for _ in range(3)]
            request = pb.SubmitRequest(queue="a", items=items)
            sent, *_ = await asyncio.gather(
                *(it.Submit(request, timeout=30) for _ in range(4)),
                it.Claim(pb.ClaimRequest(queues=["a"], max_bytes=3_000_000), timeout=30),
            )
            assert sent.verdicts[0].item_id == "3000000"
        answer = await it.Claim(pb.ClaimRequest(queues=["a"], max_bytes=3_000_000), timeout=30)
        assert len(answer.grants[0].payload) == 3_000_000


async def test_a_refusal_arrives_with_its_code_message_and_details(stub):
    async with stub() as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.Claim(pb.ClaimRequest(queues=["refused"]), timeout=10)
        await it.Claim(pb.ClaimRequest(queues=["a"]), timeout=10)  # the connection is none the worse
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "zu voll: 50 % €"
    status = status_pb2.Status.FromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "QUEUE_FULL"


async def test_an_unknown_verb_is_unimplemented(stub):
    async with stub() as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.Explain(pb.ExplainRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_not_answered_ends_at_its_deadline(stub):
    async with stub() as it:
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await it.Claim(pb.ClaimRequest(queues=["slow"]), timeout=0.2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_when_the_server_goes_away_calls_end_as_unavailable(serve):
    async with serve(Odd()) as target:  # type: ignore[abstract]
        channel: Any = await connect(target.address, target.identity, _name_of(target))
        it: Any = pb_grpc.CoordinationServiceStub(channel)
        await it.Claim(pb.ClaimRequest(queues=["a"]), timeout=10)
        waiting = asyncio.ensure_future(it.Claim(pb.ClaimRequest(queues=["slow"]), timeout=30))
        await asyncio.sleep(0)
        channel.close()
        for call in (waiting, it.Claim(pb.ClaimRequest(queues=["a"]), timeout=30)):
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await call
            assert gone.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_nobody_is_believed_who_cannot_prove_the_name(serve, tmp_path):
    async with serve(Odd()) as target:  # type: ignore[abstract]
        with pytest.raises(ssl.SSLCertVerificationError, match=r"gateway\.cp"):
            await connect(target.address, target.identity, _name_of(target, "gateway"))


async def test_nobody_is_believed_whom_another_root_vouches_for(serve, tmp_path):
    stranger = Authority.create(tmp_path / "pki", "cluster.example").issue(
        "spiffe://cluster.example/user/load", tmp_path / "stranger"
    )
    async with serve(Odd()) as target:  # type: ignore[abstract]
        with pytest.raises(UnavailableError, match="certificate"):
            async with bare(Target(target.address, stranger), Client.LEAN):
                pass
