"""Claims that wait: what wakes them, what ends them, and those whose caller has gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import ExhaustedError, PreconditionError
from libs.identity import Principal
from libs.rpc.call import Call

from ..store.memory import MemoryStore
from ..waiting import Waiting
from ..work import ClaimOrder, Granted, item_hash
from .conftest import item as new_item
from .conftest import running
from .served import AGENT, FRONTS, QUEUE, ROOT, TWIN, ack, draining, in_memory, lease, plane, seconds, work

LEASED = work_pb2.WORK_STATE_LEASED
POD = Principal.parse("spiffe://mesh.test/ns/demo/agent/docs/pod/docs-0/uid-1")  # AGENT in full

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(params=FRONTS)
async def it(tmp_path, request):
    async with plane(tmp_path, request.param) as plane_:
        yield plane_


async def soon(claim):
    """What the claim answers, well before any polling would have helped it."""
    async with asyncio.timeout(0.8):
        return await claim


async def test_a_parked_claim_answers_when_an_item_comes(it):
    claim = it.claiming()
    await it.parked(1)
    await it.submit(work(b"late"))
    assert [grant.payload for grant in await soon(claim)] == [b"late"]
    await it.parked(0)


async def test_a_claim_can_wait_for_a_queue_that_does_not_exist_yet(it):
    claim = it.claiming(queues=["demo/docs"])
    await it.parked(1)
    assert await it.everything() == []
    await it.submit()
    assert len(await soon(claim)) == 1


async def test_a_parked_claim_answers_when_a_dead_letter_is_redriven(it):
    id = await it.dead()
    claim = it.claiming()
    await it.parked(1)
    stub = await it.stub()
    await stub.Redrive(pb.RedriveRequest(queue=QUEUE))
    assert [grant.item_id for grant in await soon(claim)] == [id]


async def test_a_parked_claim_stays_parked_in_a_pause_and_answers_when_it_ends(it):
    stub = await it.stub()
    await it.configure()
    await stub.PauseQueue(pb.PauseQueueRequest(queue=QUEUE))
    claim = it.claiming()
    await it.submit()
    await it.parked(1)
    await asyncio.sleep(0.1)
    assert not claim.done()
    await stub.ResumeQueue(pb.ResumeQueueRequest(queue=QUEUE))
    assert len(await soon(claim)) == 1


async def test_a_parked_claim_answers_when_a_delay_ends(it):
    await it.submit(work(delay=seconds(0.3)))
    began = time.monotonic()
    grants = await soon(it.claiming())
    assert len(grants) == 1
    assert 0.25 < time.monotonic() - began < 0.7


async def test_a_parked_claim_answers_when_a_lease_ends(it):
    await it.configure(min_lease=seconds(0.1))
    await it.submit()
    gone = await it.take(lease=seconds(0.2), role=TWIN)
    (grant,) = await soon(it.claiming())
    assert (grant.item_id, grant.attempt) == (gone.item_id, 2)


@pytest.mark.parametrize("how", ["release", "fail", "ordering"])
async def test_a_parked_claim_answers_when_a_holder_makes_something_ready(it, how):
    await it.configure(backoff=work_pb2.Backoff(initial=seconds(0)))
    key = "k" if how == "ordering" else ""
    await it.submit(work(ordering_key=key), *([work(ordering_key=key)] if key else []))
    grant = await it.take(role=TWIN)
    claim = it.claiming()
    await it.parked(1)
    stub = await it.stub(TWIN)
    if how == "release":
        await stub.Release(pb.ReleaseRequest(leases=[lease(grant)]))
    elif how == "fail":
        await it.fail(grant, role=TWIN)
    else:
        await stub.Ack(pb.AckRequest(acks=[ack(grant)]))
    assert len(await soon(claim)) == 1


async def test_a_claim_of_many_queues_is_woken_by_each(it):
    for queue in ("demo/a", "demo/b"):
        claim = it.claiming(role=ROOT, queues=["demo/a", "demo/b"])
        await it.parked(1, queue)
        await it.submit(queue=queue, role=ROOT)
        assert [grant.queue for grant in await soon(claim)] == [queue]


async def test_a_claim_that_took_from_one_queue_wakes_another_for_the_rest(it):
    single = it.claiming(role=ROOT, queues=["demo/b"])
    await it.parked(1, "demo/b")
    both = it.claiming(role=ROOT, queues=["demo/a", "demo/b"])
    await it.parked(2, "demo/b")
    # the two arrive before the woken one, the last parked, has looked at anything
    await it.store.submit("demo/b", [new_item()])
    await it.store.submit("demo/a", [new_item()])
    assert [grant.queue for grant in await soon(both)] == ["demo/a"]
    assert [grant.queue for grant in await soon(single)] == ["demo/b"]


async def test_an_empty_answer_comes_when_the_wait_is_over(it):
    began = time.monotonic()
    assert await it.claim(wait=0.3) == []
    assert 0.29 < time.monotonic() - began < 1
    await it.parked(0)


async def test_a_deadline_shorter_than_the_wait_is_answered_before_it(it):
    stub = await it.stub(AGENT)
    request = pb.ClaimRequest(queues=[QUEUE], wait=seconds(30))
    assert not (await stub.Claim(request, timeout=0.6)).grants  # and no DEADLINE_EXCEEDED
    assert not (await stub.Claim(request, timeout=0.1)).grants


@pytest.mark.parametrize("front", FRONTS)
async def test_a_drain_answers_parked_claims_at_once(tmp_path, front):
    async with AsyncExitStack() as clients:
        async with draining(tmp_path, front, clients) as it:
            claims = [it.claiming() for _ in range(20)]
            await it.parked(20)
            began = time.monotonic()
        assert time.monotonic() - began < 2
        async with asyncio.timeout(2):
            assert [await claim for claim in claims] == [[]] * 20


async def test_a_client_that_leaves_while_parked_takes_nothing_with_it(it):
    gone = it.claiming(role=TWIN)
    await it.parked(1)
    stays = it.claiming()
    await it.parked(2)
    gone.cancel()
    await it.parked(1)
    (id,) = await it.submit()
    assert [grant.item_id for grant in await soon(stays)] == [id]
    assert (await it.item(id)).attempt == 1
    assert (await it.queue()).granted_total == 1


async def test_a_connection_that_is_cut_while_parked_takes_nothing_with_it(it):
    doomed = it.mesh.dial_as(TWIN, it.served, own_connection=True)
    async with doomed as channel:
        stub: Any = pb_grpc.CoordinationServiceStub(channel)
        calls = [
            asyncio.ensure_future(stub.Claim(pb.ClaimRequest(queues=[QUEUE], wait=seconds(30))))
            for _ in range(10)
        ]
        await it.parked(10)
    await asyncio.gather(*calls, return_exceptions=True)
    await it.parked(0)
    stays = it.claiming()
    await it.parked(1)
    (id,) = await it.submit()
    assert [grant.item_id for grant in await soon(stays)] == [id]
    assert (await it.item(id)).attempt == 1


async def test_a_storm_of_cancelled_claims_loses_no_item(it):
    await it.configure(min_lease=seconds(0.1), default_lease=seconds(0.2), max_attempts=1000)
    ids = await it.submit(*(work() for _ in range(50)))
    await it.stub(TWIN)

    async def leave(n):
        claim = it.claiming(role=TWIN, wait=5, max_items=3)
        await asyncio.sleep(n % 7 * 0.001)
        claim.cancel()
        await asyncio.wait({claim})

    await asyncio.gather(*(leave(n) for n in range(100)))
    await it.parked(0)
    done: list[str] = []
    while len(done) < 50:
        for grant in await it.claim(wait=5, max_items=50):
            assert (await it.ack(grant)).status == pb.LEASE_STATUS_OK
            done.append(grant.item_id)
    assert sorted(done) == sorted(ids)
    assert await it.claim(wait=0.3) == []


async def test_an_item_whose_answer_could_not_be_handed_over_comes_back_uncounted(it):
    (id,) = await it.submit()
    call = Call({}, POD)
    (lost,) = (await it.servicer.Claim(pb.ClaimRequest(queues=[QUEUE], request_id="r"), call)).grants
    assert ((await it.item(id)).state, (await it.item(id)).attempt) == (LEASED, 1)
    waits = it.claiming(role=TWIN)
    await it.parked(1)
    call.undeliverable()  # what the doorway does
    (grant,) = await soon(waits)
    assert (grant.item_id, grant.attempt) == (id, 1)
    assert grant.token > lost.token
    assert (await it.ack(lost)).lost_reason == pb.LOST_REASON_REGRANTED


async def test_a_claim_next_whose_answer_could_not_be_handed_over_comes_back_too(it):
    (first, second) = await it.submit(work(), work())
    grant = await it.take()
    call = Call({}, POD)
    request = pb.AckRequest(acks=[ack(grant)], claim_next=pb.ClaimRequest(queues=[QUEUE]))
    answer = await it.servicer.Ack(request, call)
    assert [next_.item_id for next_ in answer.claim.grants] == [second]
    call.undeliverable()
    (again,) = await soon(it.claiming(role=TWIN))
    assert (again.item_id, again.attempt) == (second, 1)
    assert (await it.item(first)).state == work_pb2.WORK_STATE_SUCCEEDED


async def test_200_parked_claims_are_woken_by_200_items_each_by_one(it):
    for n in range(4):
        await it.stub(f"agent/docs/uid-{n}")
    claims = [it.claiming(role=f"agent/docs/uid-{n % 4}") for n in range(200)]
    await it.parked(200)
    ids = await it.submit(*(work() for _ in range(200)))
    grants = [grant for claim in claims for grant in await claim]
    assert sorted(grant.item_id for grant in grants) == sorted(ids)
    assert (await it.queue()).granted_total == 200


async def test_a_lost_wake_is_made_up_for_whoever_waits(tmp_path):
    async with plane(tmp_path, "h2corn", lambda _: in_memory(lambda queue, ready: None)) as it:
        claims = [it.claiming(wait=20) for _ in range(3)]
        await it.parked(3)
        ids = await it.submit(work(), work(), work())
        looking = asyncio.create_task(it.waiting.run())
        async with asyncio.timeout(5):
            grants = [grant for claim in claims for grant in await claim]
        looking.cancel()
        assert sorted(grant.item_id for grant in grants) == sorted(ids)


async def test_one_item_wakes_one_of_many(it):
    claims = [it.claiming() for _ in range(10)]
    await it.parked(10)
    await it.submit()
    done, still = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED, timeout=2)
    assert len(done) == 1
    await it.parked(9)
    for claim in still:
        claim.cancel()


@pytest.mark.parametrize("front", FRONTS)
async def test_a_holder_that_parks_too_many_is_refused_and_others_are_not(tmp_path, front):
    async with plane(tmp_path, front, waiting=Waiting(most_of_holder=5)) as it:
        claims = [it.claiming() for _ in range(5)]
        await it.parked(5)
        with pytest.raises(ExhaustedError, match="parked"):
            await it.claim(wait=5)
        assert await it.claim() == []  # without waiting one may
        claims.append(it.claiming(role=TWIN))
        await it.parked(6)
        for claim in claims:
            claim.cancel()
        await it.parked(0)
        assert await it.claim(wait=0.1) == []


@pytest.mark.parametrize("front", FRONTS)
async def test_a_claim_that_is_told_to_ask_again_does_so_while_it_may_wait(tmp_path, front):
    class Moving(MemoryStore):
        """Items are on their way to their shards for so many looks."""

        looks = 3

        async def claim(self, order: ClaimOrder) -> Granted:
            self.looks -= 1
            return await super().claim(order) if self.looks < 0 else Granted((), more=True)

    @asynccontextmanager
    async def moving(wake):
        async with running(Moving(wake)) as store:
            yield store

    async with plane(tmp_path, front, moving) as it:
        await it.submit()
        answer = await (await it.stub(AGENT)).Claim(pb.ClaimRequest(queues=[QUEUE]))
        assert (len(answer.grants), answer.more) == (0, True)
        assert len(await soon(it.claiming())) == 1


def shard(index: int, count: int = 4, epoch: int = 1) -> work_pb2.Shard:
    return work_pb2.Shard(index=index, count=count, epoch=epoch)


async def test_a_parked_claim_of_a_shard_is_woken_though_others_parked_later(it):
    await it.configure(shards=work_pb2.Sharding(count=4))
    indexes = [item_hash(key, None, "") % 4 for key in ("k", "l")]
    assert len(set(indexes)) == 2
    claims = []
    for index in (*indexes, *{0, 1, 2, 3}.difference(indexes)):
        claims.append(it.claiming(shard=shard(index)))
        await it.parked(len(claims))
    for left, (key, claim) in enumerate(zip("kl", claims, strict=False), 1):
        (id,) = await it.submit(work(shard_key=key))
        assert [grant.item_id for grant in await soon(claim)] == [id]
        await it.parked(4 - left)
    for claim in claims[2:]:
        claim.cancel()


async def test_parked_claims_hear_at_once_that_the_shards_changed(it):
    await it.configure(shards=work_pb2.Sharding(count=4))
    claims = [it.claiming(shard=shard(n)) for n in range(4)]
    await it.parked(4)
    await it.configure(shards=work_pb2.Sharding(count=2))
    for claim in claims:
        with pytest.raises(PreconditionError, match="2 shards, epoch 2"):
            await soon(claim)
    await it.parked(0)


async def test_a_parked_claim_without_a_shard_hears_at_once_that_it_needs_one(it):
    claim = it.claiming()
    await it.parked(1)
    await it.configure(shards=work_pb2.Sharding(count=2))
    with pytest.raises(PreconditionError) as raised:
        await soon(claim)
    assert raised.value.reason == "SHARD_REQUIRED"
