"""Every RPC once, with its effect, over mTLS on both fronts."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import uuid4

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import (
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    QueueInUseError,
    ShardRequiredError,
    StaleShardError,
)

from ..work import item_hash
from .served import AGENT, FRONTS, QUEUE, ROOT, TWIN, ack, lease, plane, seconds, work

READY, DELAYED, BLOCKED = (
    work_pb2.WORK_STATE_READY,
    work_pb2.WORK_STATE_DELAYED,
    work_pb2.WORK_STATE_BLOCKED,
)
LEASED, SUCCEEDED = work_pb2.WORK_STATE_LEASED, work_pb2.WORK_STATE_SUCCEEDED
DEAD, CANCELED = work_pb2.WORK_STATE_DEAD, work_pb2.WORK_STATE_CANCELED
OK, LOST, SETTLED = pb.LEASE_STATUS_OK, pb.LEASE_STATUS_LOST, pb.LEASE_STATUS_SETTLED

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(params=FRONTS)
async def it(tmp_path, request):
    async with plane(tmp_path, request.param) as plane_:
        yield plane_


def filled(id):
    """An item with every field set."""
    return work_pb2.WorkItem(
        id=id,
        payload=b"\0\xff payload",
        content_type="text/plain",
        dedupe_key="key",
        priority=7,
        expires_in=seconds(3600),
        max_attempts=9,
        backoff=work_pb2.Backoff(initial=seconds(2), maximum=seconds(30), multiplier=3),
        group="batch",
        ordering_key="order",
        shard_key="shard",
        labels={"file": "ä.txt"},
        trace_context={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )


async def test_submit_claim_ack_carries_everything(it):
    id = str(uuid4())
    new = filled(id)
    assert await it.submit(new) == [id]
    grant = await it.take(lease=seconds(60))
    assert (grant.item_id, grant.queue, grant.attempt, grant.max_attempts) == (id, QUEUE, 1, 9)
    assert (grant.payload, grant.content_type) == (new.payload, "text/plain")
    assert (grant.group, grant.ordering_key) == ("batch", "order")
    assert (dict(grant.labels), dict(grant.trace_context)) == (dict(new.labels), dict(new.trace_context))
    assert 58 < grant.expires_in.ToMilliseconds() / 1000 <= 60
    assert (await it.ack(grant, b"done", result_content_type="text/x-result")).status == OK
    item = await it.item(id)
    assert (item.state, item.result, item.result_content_type) == (SUCCEEDED, b"done", "text/x-result")
    assert item.holder == "spiffe://mesh.test/ns/demo/agent/docs/pod/docs-0/uid-1"
    assert item.submitter == "spiffe://mesh.test/ns/demo/user/someone"
    assert (item.priority, item.dedupe_key, item.payload_size) == (7, "key", len(new.payload))


async def test_submit_answers_one_verdict_per_item_in_order(it):
    await it.configure(max_backlog=2)
    known, first = work(), work(dedupe_key="k")
    await it.submit(known)
    await it.submit(first)
    await it.ack(await it.take())
    stub = await it.stub()
    other, twin, fits, full = work(b"other", id=known.id), work(dedupe_key="k"), work(), work()
    request = pb.SubmitRequest(queue=QUEUE, items=[first, other, twin, fits, full])
    again, conflict, duplicate, accepted, beyond = (await stub.Submit(request)).verdicts
    assert (again.status, again.item_id) == (pb.SUBMIT_STATUS_ACCEPTED, first.id)
    assert (conflict.status, conflict.item_id) == (pb.SUBMIT_STATUS_ID_CONFLICT, known.id)
    assert (duplicate.status, duplicate.item_id) == (pb.SUBMIT_STATUS_DUPLICATE, first.id)
    assert duplicate.state == READY
    assert (accepted.status, accepted.item_id) == (pb.SUBMIT_STATUS_ACCEPTED, fits.id)
    assert (beyond.status, beyond.depth, beyond.cap) == (pb.SUBMIT_STATUS_FULL, 2, 2)
    assert (await it.queue()).ready_count == 2


async def test_submit_makes_an_id_where_there_is_none(it):
    (id,) = await it.submit(work_pb2.WorkItem(payload=b"x"))
    assert (await it.item(id)).state == READY


async def test_renew_prolongs_and_says_how_long_and_that_a_cancel_was_asked(it):
    (id,) = await it.submit()
    grant = await it.take(lease=seconds(5))
    stub = await it.stub(AGENT)
    request = pb.RenewRequest(leases=[lease(grant)], lease=seconds(100))
    (verdict,) = (await stub.Renew(request)).verdicts
    assert (verdict.status, verdict.cancel_requested) == (OK, False)
    assert 98 < verdict.expires_in.ToMilliseconds() / 1000 <= 100
    user = await it.stub()
    (canceled,) = (await user.Cancel(pb.CancelRequest(item_ids=[id], reason="enough"))).verdicts
    assert (canceled.status, canceled.state) == (pb.CANCEL_STATUS_LEASED, LEASED)
    assert (await stub.Renew(request)).verdicts[0].cancel_requested
    (released,) = (await stub.Release(pb.ReleaseRequest(leases=[lease(grant)]))).verdicts
    assert (released.status, released.state) == (OK, CANCELED)
    assert (await it.item(id)).cancel_reason == "enough"


async def test_ack_claims_the_next_in_the_same_round_trip(it):
    await it.submit(work(b"1"), work(b"2"), work(b"3"))
    stub = await it.stub(AGENT)
    claim_next = pb.ClaimRequest(queues=[QUEUE], wait=seconds(30))
    first = await it.take()
    answer = await stub.Ack(pb.AckRequest(acks=[ack(first)], claim_next=claim_next))
    assert answer.verdicts[0].status == OK
    assert [grant.payload for grant in answer.claim.grants] == [b"2"]
    assert answer.claim.more
    answer = await stub.Ack(pb.AckRequest(acks=[ack(answer.claim.grants[0])], claim_next=claim_next))
    assert [grant.payload for grant in answer.claim.grants] == [b"3"]
    async with asyncio.timeout(5):  # it never waits, whatever it says
        answer = await stub.Ack(pb.AckRequest(acks=[ack(answer.claim.grants[0])], claim_next=claim_next))
    assert answer.HasField("claim")
    assert not answer.claim.grants
    assert (await it.queue()).settled_total == 3


async def test_ack_stands_when_its_claim_next_cannot_run(it):
    await it.submit(work(b"1"), work(b"2"))
    stub = await it.stub(AGENT)
    await it.take(request_id="r")
    second = await it.take()
    claim_next = pb.ClaimRequest(queues=[QUEUE], request_id="r", max_items=5)
    answer = await stub.Ack(pb.AckRequest(acks=[ack(second)], claim_next=claim_next))
    assert answer.verdicts[0].status == OK
    assert not answer.HasField("claim")
    assert "request_id" in answer.claim_error
    assert (await it.queue()).settled_total == 1


async def test_a_claim_of_a_stale_shard_or_of_none_is_refused_with_its_reason(it):
    configured = await it.configure(shards=work_pb2.Sharding(count=3))
    assert configured.policy.shards == work_pb2.Sharding(count=3, epoch=1)
    await it.submit()
    for shard, reason in (
        (work_pb2.Shard(index=0, count=3, epoch=2), "STALE_SHARD"),
        (work_pb2.Shard(index=0, count=2, epoch=1), "STALE_SHARD"),
        (None, "SHARD_REQUIRED"),
    ):
        with pytest.raises(PreconditionError, match="3 shards, epoch 1") as raised:
            await it.claim(shard=shard, wait=5)
        assert raised.value.reason == reason
    assert (await it.queue()).granted_total == 0


async def test_a_refusal_of_a_claim_of_many_queues_names_the_one(it):
    await it.configure(queue="demo/a")
    await it.configure(queue="demo/b", shards=work_pb2.Sharding(count=2))
    with pytest.raises(ShardRequiredError, match="queue demo/b has 2 shards, epoch 1"):
        await it.claim(role=ROOT, queues=["demo/a", "demo/b"])


async def test_explain_says_that_claims_are_refused_until_they_fit_again(it):
    stub = await it.stub()

    async def first(**what):
        obstacle = (await stub.Explain(pb.ExplainRequest(**what))).obstacles[0]
        return obstacle.code, obstacle.detail.partition(" (")[0]

    claim = it.claiming()
    await it.parked(1)
    await it.configure(shards=work_pb2.Sharding(count=2))
    with pytest.raises(ShardRequiredError):
        await claim
    (id,) = await it.submit()
    said = f"SHARD_REQUIRED: queue {QUEUE} has 2 shards, epoch 1; a claim must name its shard"
    assert await first(queue=QUEUE) == await first(item_id=id) == ("CLAIMS_REFUSED", said)
    await it.configure(shards=work_pb2.Sharding(count=0))
    assert (await first(queue=QUEUE))[0] == "NO_WORKER_POLLING"
    with pytest.raises(StaleShardError):
        await it.claim(shard=work_pb2.Shard(index=1, count=2, epoch=1))
    said = f"STALE_SHARD: queue {QUEUE} has 0 shards, epoch 2, the claim is for 2, epoch 1"
    assert await first(queue=QUEUE) == ("CLAIMS_REFUSED", said)


async def test_ack_stands_when_the_shard_of_its_claim_next_is_stale(it):
    await it.submit(work(), work())
    await it.configure(shards=work_pb2.Sharding(count=1))
    grant = await it.take(shard=work_pb2.Shard(count=1, epoch=1))
    stub = await it.stub(AGENT)
    claim_next = pb.ClaimRequest(queues=[QUEUE], shard=work_pb2.Shard(count=2, epoch=1))
    answer = await stub.Ack(pb.AckRequest(acks=[ack(grant)], claim_next=claim_next))
    assert answer.verdicts[0].status == OK
    assert answer.claim_error.startswith("STALE_SHARD: ")
    assert not answer.HasField("claim")


async def test_shards_change_at_the_named_epoch_only_and_not_while_items_are_held(it):
    await it.configure(shards=work_pb2.Sharding(count=1))
    with pytest.raises(StaleShardError, match="1 shards, epoch 1"):
        await it.configure(shards=work_pb2.Sharding(count=2, epoch=7))
    await it.submit()
    grant = await it.take(shard=work_pb2.Shard(count=1, epoch=1))
    with pytest.raises(QueueInUseError, match="1 items are held"):
        await it.configure(shards=work_pb2.Sharding(count=2, epoch=1))
    await it.ack(grant)
    configured = await it.configure(shards=work_pb2.Sharding(count=2, epoch=1))
    assert configured.policy.shards == work_pb2.Sharding(count=2, epoch=2)


async def test_items_and_explain_say_which_shard(it):
    (id,) = await it.submit(work(shard_key="k"))
    assert not (await it.item(id)).HasField("shard")
    await it.configure(shards=work_pb2.Sharding(count=4))
    shard = item_hash("k", None, "") % 4
    assert (await it.item(id)).shard == shard
    claim = it.claiming(shard=work_pb2.Shard(index=(shard + 1) % 4, count=4, epoch=1))
    await it.parked(1)
    stub = await it.stub()
    (obstacle,) = (await stub.Explain(pb.ExplainRequest(item_id=id))).obstacles
    assert obstacle.code == "SHARD_IDLE"
    assert f"shard {shard} " in obstacle.detail
    claim.cancel()


async def test_fail_retries_later_and_then_is_dead(it):
    (id,) = await it.submit(work(max_attempts=2))
    verdict = await it.fail(await it.take(), retry_after=seconds(1))
    assert verdict.status == OK
    assert 0.9 <= verdict.retry_in.ToMilliseconds() / 1000 <= 1.1
    item = await it.item(id)
    assert (item.state, item.attempt) == (DELAYED, 1)
    grant = await it.take(wait=10)
    assert [failure.error for failure in grant.failures] == ["boom"]
    verdict = await it.fail(grant)
    assert (verdict.status, verdict.state) == (OK, DEAD)
    item = await it.item(id)
    assert (item.dead_cause, len(item.failures)) == (work_pb2.DEAD_CAUSE_ATTEMPTS, 2)


async def test_release_gives_back_uncounted(it):
    (id,) = await it.submit()
    stub = await it.stub(AGENT)
    released = await stub.Release(pb.ReleaseRequest(leases=[lease(await it.take())], reason="busy"))
    assert released.verdicts[0].status == OK
    assert ((await it.item(id)).state, (await it.item(id)).attempt) == (READY, 0)


async def test_cancel_says_what_became_of_each(it):
    ids = await it.submit(work(), work())
    await it.ack(await it.take())
    stub = await it.stub()
    unknown = str(uuid4())
    answer = await stub.Cancel(pb.CancelRequest(item_ids=[*ids, unknown]))
    assert [(v.status, v.state) for v in answer.verdicts] == [
        (pb.CANCEL_STATUS_SETTLED, SUCCEEDED),
        (pb.CANCEL_STATUS_CANCELED, CANCELED),
        (pb.CANCEL_STATUS_NOT_FOUND, work_pb2.WORK_STATE_UNSPECIFIED),
    ]


async def test_get_items_in_order_with_payloads_where_asked_and_names_the_missing(it):
    a, b = await it.submit(work(b"a"), work(b"b"))
    unknown = str(uuid4())
    stub = await it.stub()
    answer = await stub.GetItems(pb.GetItemsRequest(item_ids=[b, unknown, a]))
    assert [(item.id, item.payload, item.payload_size) for item in answer.items] == [(b, b"", 1), (a, b"", 1)]
    assert list(answer.missing_ids) == [unknown]
    answer = await stub.GetItems(pb.GetItemsRequest(item_ids=[a], include_payload=True))
    assert answer.items[0].payload == b"a"


async def test_get_items_beyond_an_answer_is_refused(it):
    ids = await it.submit(*(work(b"x" * (1 << 20)) for _ in range(3)))
    ids += await it.submit(work(b"x" * (1 << 20)))
    stub = await it.stub()
    with pytest.raises(ExhaustedError, match="ask for fewer"):
        await stub.GetItems(pb.GetItemsRequest(item_ids=ids, include_payload=True))
    answer = await stub.GetItems(pb.GetItemsRequest(item_ids=ids[:3], include_payload=True))
    assert len(answer.items) == 3


async def test_list_items_in_pages_by_state_label_and_group(it):
    ids = await it.submit(*(work(labels={"n": str(n)}, group=f"g{n % 2}") for n in range(7)))
    stub = await it.stub()
    pages = [await stub.ListItems(pb.ListItemsRequest(queue=QUEUE, page_size=3))]
    while pages[-1].next_page_token:
        token = pages[-1].next_page_token
        pages.append(await stub.ListItems(pb.ListItemsRequest(queue=QUEUE, page_size=3, page_token=token)))
    assert [item.id for page in pages for item in page.items] == ids

    async def listed(**which):
        answer = await stub.ListItems(pb.ListItemsRequest(queue=QUEUE, **which))
        return [item.id for item in answer.items]

    assert await listed(labels={"n": "4"}) == [ids[4]]
    assert await listed(group="g1") == ids[1::2]
    await it.ack(await it.take(), b"result")
    assert await listed() == ids[1:]
    assert await listed(states=[SUCCEEDED]) == ids[:1]


async def test_a_page_is_never_larger_than_an_answer(it):
    fat = {f"{n:02}-{'k' * 60}": "v" * 255 for n in range(32)}
    for _ in range(2):
        await it.submit(*(work(b"", labels=fat) for _ in range(300)))
    stub = await it.stub()
    seen, token = 0, ""
    while True:
        page = await stub.ListItems(pb.ListItemsRequest(queue=QUEUE, page_size=1000, page_token=token))
        seen += len(page.items)
        if not (token := page.next_page_token):
            break
    assert seen == 600


async def test_dead_letters_are_listed_redriven_and_purged(it):
    a = await it.dead(labels={"kind": "a"})
    b = await it.dead(labels={"kind": "b"})
    c = await it.dead(labels={"kind": "c"})
    stub = await it.stub()
    listed = await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue=QUEUE, page_size=2))
    assert [item.id for item in listed.items] == [a, b]
    token = listed.next_page_token
    listed = await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue=QUEUE, page_size=2, page_token=token))
    assert [item.id for item in listed.items] == [c]
    only_b = pb.DeadLetterFilter(labels={"kind": "b"}, cause=work_pb2.DEAD_CAUSE_TERMINAL)
    redriven = await stub.Redrive(pb.RedriveRequest(queue=QUEUE, filter=only_b))
    assert (list(redriven.item_ids), redriven.more) == ([b], False)
    item = await it.item(b)
    assert (item.state, item.attempt, len(item.failures)) == (READY, 0, 1)
    only_c = pb.DeadLetterFilter(item_ids=[c])
    purged = await stub.Purge(pb.PurgeRequest(queue=QUEUE, filter=only_c))
    assert (purged.purged_count, purged.more) == (1, False)
    assert (await it.queue()).dead_count == 1
    assert (await stub.Purge(pb.PurgeRequest(queue=QUEUE, all=True, limit=1))).purged_count == 1
    assert (await it.queue()).dead_count == 0


async def test_redrive_can_be_paced_and_limited(it):
    for _ in range(3):
        await it.dead()
    stub = await it.stub()
    answer = await stub.Redrive(pb.RedriveRequest(queue=QUEUE, limit=2, per_second=0.1))
    assert (len(answer.item_ids), answer.more) == (2, True)
    queue = await it.queue()
    assert (queue.ready_count, queue.delayed_count, queue.dead_count) == (1, 1, 1)


async def test_queues_are_configured_and_show_every_number(it):
    queue = await it.configure(
        max_attempts=3, default_lease=seconds(7), agents=work_pb2.AgentList(names=["x"])
    )
    assert (queue.policy.max_attempts, queue.policy.default_lease.seconds) == (3, 7)
    assert (queue.policy.max_lease.seconds, list(queue.policy.agents.names)) == (3600, ["x"])
    await it.dead()
    await it.submit(work(), work(), work(ordering_key="k"), work(ordering_key="k"), work(delay=seconds(60)))
    await it.take()
    queue = await it.queue()
    assert (queue.ready_count, queue.leased_count, queue.dead_count) == (2, 1, 1)
    assert (queue.blocked_count, queue.delayed_count) == (1, 1)
    assert (queue.submitted_total, queue.granted_total, queue.settled_total) == (6, 2, 1)
    assert queue.HasField("oldest_ready_age")
    assert not queue.paused


async def test_a_paused_queue_grants_nothing_until_it_is_resumed(it):
    await it.submit()
    stub = await it.stub()
    assert (await stub.PauseQueue(pb.PauseQueueRequest(queue=QUEUE))).queue.paused
    assert await it.claim() == []
    assert not (await stub.ResumeQueue(pb.ResumeQueueRequest(queue=QUEUE))).queue.paused
    assert len(await it.claim()) == 1


async def test_an_agent_gives_back_for_its_own_pod_only(it):
    await it.submit(*(work() for _ in range(2)))
    await it.claim(max_items=2)
    own = pb.ReleaseWorkerRequest(namespace="demo", pod_uid="uid-1", reason="started again")
    twin = await it.stub(TWIN)
    with pytest.raises(NotFoundError, match="no pod uid-1"):
        await twin.ReleaseWorker(own)
    assert (await (await it.stub(AGENT)).ReleaseWorker(own)).released_count == 2


async def test_release_worker_gives_back_what_one_pod_holds(it):
    ids = await it.submit(*(work() for _ in range(4)))
    await it.claim(max_items=3)
    kept = await it.take(role=TWIN)
    stub = await it.stub("cp/operator")
    request = pb.ReleaseWorkerRequest(namespace="demo", pod_uid="uid-1", reason="gone")
    assert (await stub.ReleaseWorker(request)).released_count == 3
    assert (await stub.ReleaseWorker(request)).released_count == 0
    items = [await it.item(id) for id in ids]
    assert Counter(item.state for item in items) == {READY: 3, LEASED: 1}
    assert {item.attempt for item in items if item.state == READY} == {0}
    assert (await it.item(kept.item_id)).state == LEASED


async def test_explain_says_why_for_a_queue_and_for_an_item(it):
    stub = await it.stub()
    (id,) = await it.submit(work(delay=seconds(60)))

    async def codes(**what):
        return [obstacle.code for obstacle in (await stub.Explain(pb.ExplainRequest(**what))).obstacles]

    assert await codes(queue=QUEUE) == ["NOTHING_READY"]
    assert await codes(item_id=id) == ["DELAYED"]
    await stub.PauseQueue(pb.PauseQueueRequest(queue=QUEUE))
    assert await codes(item_id=id) == ["DELAYED", "PAUSED"]
    first, second = await it.submit(work(ordering_key="k"), work(ordering_key="k"))
    assert await codes(item_id=second) == ["ORDERING_KEY_BUSY", "PAUSED", "NO_WORKER_POLLING"]
    await stub.ResumeQueue(pb.ResumeQueueRequest(queue=QUEUE))
    assert await codes(queue=QUEUE) == ["NO_WORKER_POLLING"]
    await it.take()
    assert await codes(item_id=first) == ["LEASED"]


async def test_a_claim_repeated_with_its_request_id_gets_the_same_grants(it):
    await it.submit(work(), work(), work())
    first = await it.claim(max_items=2, request_id="r")
    again = await it.claim(max_items=2, request_id="r")
    assert [(grant.item_id, grant.token, grant.attempt) for grant in again] == [
        (grant.item_id, grant.token, grant.attempt) for grant in first
    ]
    async with it.unchanged():
        with pytest.raises(InvalidError, match="request_id"):
            await it.claim(max_items=1, request_id="r")
    assert len(await it.claim(max_items=2, request_id="r", role=TWIN)) == 1  # unique per holder


async def test_72_concurrent_claims_over_12_items_get_12_grants(it):
    ids = await it.submit(*(work() for _ in range(12)))
    roles = [f"agent/docs/uid-{n}" for n in range(6)]
    for role in roles:
        await it.stub(role)
    claims = await asyncio.gather(*(it.claim(role=role, max_items=2) for role in roles for _ in range(12)))
    granted = [grant.item_id for grants in claims for grant in grants]
    assert sorted(granted) == sorted(ids)
    assert {grant.attempt for grants in claims for grant in grants} == {1}


async def test_a_claim_tries_its_queues_in_order(it):
    await it.submit(work(b"b"), queue="demo/b", role=ROOT)
    await it.submit(work(b"a"), queue="demo/a", role=ROOT)
    got = [(await it.take(role=ROOT, queues=["demo/none", "demo/a", "demo/b"])).payload for _ in range(2)]
    assert got == [b"a", b"b"]


async def test_a_claim_can_name_the_item_by_its_dedupe_key(it):
    await it.submit(work(b"1", dedupe_key="one"), work(b"2", dedupe_key="two"))
    assert (await it.take(dedupe_key="two")).payload == b"2"
    assert await it.claim(dedupe_key="two") == []


async def test_a_grant_is_cut_to_what_the_caller_can_receive(it):
    for _ in range(2):
        await it.submit(*(work(b"x" * (1 << 20)) for _ in range(3)))
    stub = await it.stub(AGENT)
    answer = await stub.Claim(pb.ClaimRequest(queues=[QUEUE], max_items=1000))
    assert len(answer.grants) == 3
    assert answer.more
    assert len(await it.claim(max_items=1000, max_bytes=1)) == 1


async def test_a_grant_of_many_labels_is_cut_too(it):
    fat = {f"{n:02}-{'k' * 60}": "v" * 255 for n in range(32)}
    for _ in range(2):
        await it.submit(*(work(b"", labels=fat) for _ in range(300)))
    got = 0
    while grants := await it.claim(max_items=1000):
        got += len(grants)
    assert got == 600


async def test_more_queues_than_an_answer_carries_are_asked_for_by_namespace(it):
    for namespace in ("a", "b", "c"):
        for n in range(700):
            await it.store.configure(f"{namespace}/q{n}", {})
    root = await it.stub(ROOT)
    with pytest.raises(ExhaustedError, match="by namespace"):
        await root.GetQueues(pb.GetQueuesRequest())
    assert len((await root.GetQueues(pb.GetQueuesRequest(namespace="b"))).queues) == 700
    watched: set[str] = set()
    updates = root.WatchQueues(pb.WatchQueuesRequest())
    async for update in updates:
        assert len(update.queues) <= 2000
        watched |= {queue.name for queue in update.queues}
        if len(watched) == 2100:
            break
    updates.cancel()
