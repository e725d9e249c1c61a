"""Bad input: each a precise error that names the field, and nothing changed. On both fronts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError, MeshError, NotFoundError
from libs.work.item import duration

from .served import AGENT, FRONTS, QUEUE, ROOT, SERVICE, TWIN, ack, lease, plane, refused, seconds, work

MANY = 1001
ID = str(uuid4())
METHODS = pb.DESCRIPTOR.services_by_name["CoordinationService"].methods
LEASE = work_pb2.Lease(item_id=ID, token=1)
YEARS = duration(timedelta(days=367))
BACKWARDS = Duration(seconds=-1)
CROOKED = Duration(seconds=1, nanos=-1)
OVERFULL = Duration(nanos=2_000_000_000)
ABSURD = Duration(seconds=2**62)
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(params=FRONTS, scope="module")
async def it(request, tmp_path_factory):
    """One plane for all: whatever is refused leaves it as it was."""
    async with plane(tmp_path_factory.mktemp("plane"), request.param) as plane_:
        await plane_.submit(work(dedupe_key="one"), work(), work())
        await plane_.dead()
        await plane_.configure("demo/small", max_payload_bytes=10)
        await plane_.take()
        yield plane_


def submit(**fields):
    return pb.SubmitRequest(queue=QUEUE, items=[work(), work(**fields)])


def claim(**fields):
    return pb.ClaimRequest(**{"queues": [QUEUE], **fields})


def next_(**fields):
    return pb.AckRequest(acks=[pb.Ack(item_id=ID, token=1)], claim_next=claim(**fields))


def fail(**fields):
    return pb.FailRequest(failures=[pb.LeaseFailure(**{"item_id": ID, "token": 1, **fields})])


def policy(**fields):
    return pb.ConfigureQueueRequest(queue=QUEUE, policy=work_pb2.QueuePolicy(**fields))


def dead(**fields):
    return pb.DeadLetterFilter(**fields)


BAD_QUEUES = [
    "",
    "docs",
    "demo/",
    "/docs",
    "Demo/docs",
    "demo/docs/x",
    "demo/do\0cs",
    "demo/döcs",
    "demo/docs\n",
]
BAD_QUEUES += ["demo/-docs", "demo/" + "x" * 201, "d" * 64 + "/docs", "demo/ docs", "demo/%"]
BAD_IDS = ["", "x", ID.upper(), ID + "0", ID[:-1] + "\0", "{" + ID + "}", ID.replace("-", "")]

CASES = [
    *(("Submit", pb.SubmitRequest(queue=name, items=[work()]), "queue") for name in BAD_QUEUES),
    ("Submit", pb.SubmitRequest(queue=QUEUE), "items"),
    ("Submit", pb.SubmitRequest(queue=QUEUE, items=[work(b"") for _ in range(MANY)]), "items"),
    *(("Submit", submit(id=id), "items[1].id") for id in BAD_IDS if id),
    ("Submit", pb.SubmitRequest(queue=QUEUE, items=[work(id=ID), work(id=ID)]), "items[1].id"),
    ("Submit", submit(payload=b"x" * (MIB + 1)), "items[1].payload"),
    ("Submit", pb.SubmitRequest(queue="demo/small", items=[work(b"x" * 11)]), "items[0].payload"),
    ("Submit", submit(content_type="x" * 129), "items[1].content_type"),
    ("Submit", submit(content_type="a\0b"), "items[1].content_type"),
    ("Submit", submit(dedupe_key="ä" * 129), "items[1].dedupe_key"),
    ("Submit", submit(dedupe_key="a\0"), "items[1].dedupe_key"),
    ("Submit", submit(priority=-1), "items[1].priority"),
    ("Submit", submit(priority=10), "items[1].priority"),
    *(("Submit", submit(delay=d), "items[1].delay") for d in (BACKWARDS, CROOKED, OVERFULL, ABSURD, YEARS)),
    *(("Submit", submit(expires_in=d), "items[1].expires_in") for d in (BACKWARDS, ABSURD, YEARS)),
    ("Submit", submit(max_attempts=-1), "items[1].max_attempts"),
    ("Submit", submit(max_attempts=1001), "items[1].max_attempts"),
    ("Submit", submit(backoff=work_pb2.Backoff(initial=BACKWARDS)), "items[1].backoff.initial"),
    ("Submit", submit(backoff=work_pb2.Backoff(maximum=ABSURD)), "items[1].backoff.maximum"),
    *(
        ("Submit", submit(backoff=work_pb2.Backoff(multiplier=m)), "items[1].backoff.multiplier")
        for m in (0.5, 11, -1, float("nan"), float("inf"))
    ),
    ("Submit", submit(group="g" * 257), "items[1].group"),
    ("Submit", submit(ordering_key="\0"), "items[1].ordering_key"),
    *(
        (verb, ask(shard=work_pb2.Shard(index=index, count=count, epoch=epoch), **more), path + field)
        for verb, ask, path in (("Claim", claim, ""), ("Ack", next_, "claim_next."))
        for index, count, epoch, more, field in (
            (0, 0, 1, {}, "shard.count"),
            (0, -1, 1, {}, "shard.count"),
            (0, 1025, 1, {}, "shard.count"),
            (3, 3, 1, {}, "shard.index"),
            (-1, 3, 1, {}, "shard.index"),
            (0, 3, 0, {}, "shard.epoch"),
            (0, 3, (1 << 50) + 1, {}, "shard.epoch"),
            (0, 3, 1, {"queues": [QUEUE, "demo/small"]}, "shard"),
            (0, 3, 1, {"dedupe_key": "d"}, "shard"),
        )
    ),
    *(
        ("ConfigureQueue", policy(shards=work_pb2.Sharding(count=n)), "policy.shards.count")
        for n in (-1, 1025)
    ),
    *(
        ("ConfigureQueue", policy(shards=work_pb2.Sharding(count=1, epoch=n)), "policy.shards.epoch")
        for n in (-1, (1 << 50) + 1)
    ),
    ("Submit", submit(shard_key="s" * 257), "items[1].shard_key"),
    ("Submit", submit(labels={str(n): "" for n in range(33)}), "items[1].labels"),
    ("Submit", submit(labels={"": "x"}), "items[1].labels['']"),
    ("Submit", submit(labels={"a=b": "x"}), "items[1].labels['a=b']"),
    ("Submit", submit(labels={"k" * 64: "x"}), f"items[1].labels['{'k' * 64}']"),
    ("Submit", submit(labels={"k": "v" * 256}), "items[1].labels['k']"),
    ("Submit", submit(labels={"k": "\0"}), "items[1].labels['k']"),
    ("Submit", submit(trace_context={"authorization": "x"}), "items[1].trace_context"),
    ("Submit", submit(trace_context={"traceparent": "\0"}), "items[1].trace_context[traceparent]"),
    ("Claim", pb.ClaimRequest(), "queues"),
    ("Claim", claim(queues=[QUEUE] * 17), "queues"),
    ("Claim", claim(queues=[QUEUE, "demo/\0"]), "queues[1]"),
    *(("Claim", claim(max_items=n), "max_items") for n in (-1, 1001, 2**31 - 1)),
    *(("Claim", claim(max_bytes=n), "max_bytes") for n in (-1, 3 * MIB + 1)),
    *(("Claim", claim(wait=d), "wait") for d in (BACKWARDS, CROOKED, OVERFULL, ABSURD, seconds(61))),
    *(
        ("Claim", claim(lease=d), "lease")
        for d in (BACKWARDS, ABSURD, seconds(0), seconds(0.5), seconds(3601))
    ),
    ("Claim", claim(request_id="r" * 65), "request_id"),
    ("Claim", claim(request_id="\0"), "request_id"),
    ("Claim", claim(dedupe_key="\0"), "dedupe_key"),
    ("Claim", claim(queues=[QUEUE, "demo/x"], dedupe_key="one"), "dedupe_key"),
    ("Renew", pb.RenewRequest(), "leases"),
    ("Renew", pb.RenewRequest(leases=[LEASE] * MANY), "leases"),
    *(
        ("Renew", pb.RenewRequest(leases=[work_pb2.Lease(item_id=id, token=1)]), "leases[0].item_id")
        for id in BAD_IDS
    ),
    *(
        ("Renew", pb.RenewRequest(leases=[LEASE, work_pb2.Lease(item_id=ID, token=n)]), "leases[1].token")
        for n in (0, -1)
    ),
    *(
        ("Renew", pb.RenewRequest(leases=[LEASE], lease=d), "lease")
        for d in (BACKWARDS, ABSURD, seconds(86_401))
    ),
    ("Ack", pb.AckRequest(), "acks"),
    ("Ack", pb.AckRequest(acks=[pb.Ack(item_id=ID, token=1)] * MANY), "acks"),
    ("Ack", pb.AckRequest(acks=[pb.Ack(item_id="x", token=1)]), "acks[0].item_id"),
    ("Ack", pb.AckRequest(acks=[pb.Ack(item_id=ID)]), "acks[0].token"),
    ("Ack", pb.AckRequest(acks=[pb.Ack(item_id=ID, token=1, result=b"x" * (MIB + 1))]), "acks[0].result"),
    (
        "Ack",
        pb.AckRequest(acks=[pb.Ack(item_id=ID, token=1, result_content_type="x" * 129)]),
        "acks[0].result_content_type",
    ),
    ("Ack", next_(queues=[]), "claim_next.queues"),
    ("Ack", next_(queues=["x"]), "claim_next.queues[0]"),
    ("Ack", next_(max_items=1001), "claim_next.max_items"),
    ("Ack", next_(max_bytes=-1), "claim_next.max_bytes"),
    ("Ack", next_(wait=BACKWARDS), "claim_next.wait"),
    ("Ack", next_(lease=ABSURD), "claim_next.lease"),
    ("Ack", next_(request_id="r" * 65), "claim_next.request_id"),
    ("Ack", next_(queues=[QUEUE, "demo/x"], dedupe_key="one"), "claim_next.dedupe_key"),
    ("Fail", pb.FailRequest(), "failures"),
    ("Fail", pb.FailRequest(failures=[pb.LeaseFailure(item_id=ID, token=1)] * MANY), "failures"),
    ("Fail", fail(item_id="x"), "failures[0].item_id"),
    ("Fail", fail(token=0), "failures[0].token"),
    ("Fail", fail(error="x" * 1025), "failures[0].error"),
    ("Fail", fail(error="\0"), "failures[0].error"),
    *(("Fail", fail(retry_after=d), "failures[0].retry_after") for d in (BACKWARDS, ABSURD, seconds(86_401))),
    ("Release", pb.ReleaseRequest(), "leases"),
    ("Release", pb.ReleaseRequest(leases=[LEASE] * MANY), "leases"),
    ("Release", pb.ReleaseRequest(leases=[LEASE], reason="\0"), "reason"),
    ("Release", pb.ReleaseRequest(leases=[LEASE], reason="x" * 1025), "reason"),
    ("Cancel", pb.CancelRequest(), "item_ids"),
    ("Cancel", pb.CancelRequest(item_ids=[ID] * MANY), "item_ids"),
    *(("Cancel", pb.CancelRequest(item_ids=[ID, id]), "item_ids[1]") for id in BAD_IDS),
    ("Cancel", pb.CancelRequest(item_ids=[ID], reason="\0"), "reason"),
    ("GetItems", pb.GetItemsRequest(), "item_ids"),
    ("GetItems", pb.GetItemsRequest(item_ids=[ID] * MANY), "item_ids"),
    ("GetItems", pb.GetItemsRequest(item_ids=[ID] * 101, include_payload=True), "item_ids"),
    ("ListItems", pb.ListItemsRequest(queue=""), "queue"),
    ("ListItems", pb.ListItemsRequest(queue=QUEUE, states=[99]), "states"),  # type: ignore[list-item]
    ("ListItems", pb.ListItemsRequest(queue=QUEUE, states=[0]), "states"),  # type: ignore[list-item]
    ("ListItems", pb.ListItemsRequest(queue=QUEUE, labels={"": ""}), "labels['']"),
    ("ListItems", pb.ListItemsRequest(queue=QUEUE, group="\0"), "group"),
    *(("ListItems", pb.ListItemsRequest(queue=QUEUE, page_size=n), "page_size") for n in (-1, 1001)),
    *(
        ("ListItems", pb.ListItemsRequest(queue=QUEUE, page_token=t), "page_token")
        for t in ("x", "-1", "9" * 40, "²")
    ),
    ("WatchResults", pb.WatchResultsRequest(), "queue"),
    ("WatchResults", pb.WatchResultsRequest(item_ids=[ID] * MANY), "item_ids"),
    ("WatchResults", pb.WatchResultsRequest(item_ids=[ID], queue=QUEUE), "item_ids"),
    ("WatchResults", pb.WatchResultsRequest(item_ids=["x"]), "item_ids[0]"),
    ("WatchResults", pb.WatchResultsRequest(queue=QUEUE, group="\0"), "group"),
    ("WatchResults", pb.WatchResultsRequest(queue=QUEUE, cursor="not ours"), "cursor"),
    ("GetQueues", pb.GetQueuesRequest(queues=["demo/x", "x"]), "queues[1]"),
    ("GetQueues", pb.GetQueuesRequest(queues=[QUEUE] * MANY), "queues"),
    ("GetQueues", pb.GetQueuesRequest(namespace="d/"), "namespace"),
    ("WatchQueues", pb.WatchQueuesRequest(queues=["x"]), "queues[0]"),
    ("WatchQueues", pb.WatchQueuesRequest(namespace="\0"), "namespace"),
    *(
        ("WatchQueues", pb.WatchQueuesRequest(min_interval=d), "min_interval")
        for d in (BACKWARDS, seconds(61))
    ),
    ("ListDeadLetters", pb.ListDeadLettersRequest(queue="x"), "queue"),
    ("ListDeadLetters", pb.ListDeadLettersRequest(queue=QUEUE, page_size=-1), "page_size"),
    ("ListDeadLetters", pb.ListDeadLettersRequest(queue=QUEUE, page_token="x"), "page_token"),
    *(
        ("ListDeadLetters", pb.ListDeadLettersRequest(queue=QUEUE, filter=given), field)
        for given, field in (
            (dead(item_ids=["x"]), "filter.item_ids[0]"),
            (dead(item_ids=[ID] * MANY), "filter.item_ids"),
            (dead(cause=99), "filter.cause"),
            (dead(labels={"a=": ""}), "filter.labels['a=']"),
            (dead(group="\0"), "filter.group"),
        )
    ),
    *(("Redrive", pb.RedriveRequest(queue=QUEUE, limit=n), "limit") for n in (-1, 1001)),
    *(
        ("Redrive", pb.RedriveRequest(queue=QUEUE, per_second=n), "per_second")
        for n in (-1, 2e6, float("nan"), float("inf"))
    ),
    ("Redrive", pb.RedriveRequest(queue=QUEUE, filter=dead(cause=99)), "filter.cause"),
    ("Purge", pb.PurgeRequest(queue=QUEUE), "filter"),
    ("Purge", pb.PurgeRequest(queue=QUEUE, filter=dead(group="g"), all=True), "all"),
    ("Purge", pb.PurgeRequest(queue=QUEUE, all=True, limit=1001), "limit"),
    *(("ConfigureQueue", pb.ConfigureQueueRequest(queue=name), "queue") for name in BAD_QUEUES[:4]),
    *(
        ("ConfigureQueue", policy(**{field: d}), f"policy.{field}")
        for field in (
            "default_lease",
            "min_lease",
            "max_lease",
            "max_hold",
            "dedupe_window",
            "settled_retention",
        )
        for d in (BACKWARDS, ABSURD, duration(timedelta(days=400)))
    ),
    ("ConfigureQueue", policy(min_lease=seconds(0.05)), "policy.min_lease"),
    ("ConfigureQueue", policy(settled_retention=seconds(59)), "policy.settled_retention"),
    *(("ConfigureQueue", policy(max_attempts=n), "policy.max_attempts") for n in (0, -1, 1001)),
    *(("ConfigureQueue", policy(max_backlog=n), "policy.max_backlog") for n in (0, 100_000_001)),
    *(("ConfigureQueue", policy(max_payload_bytes=n), "policy.max_payload_bytes") for n in (0, MIB + 1)),
    ("ConfigureQueue", policy(backoff=work_pb2.Backoff(multiplier=11)), "policy.backoff.multiplier"),
    ("ConfigureQueue", policy(on_expiry=99), "policy"),
    ("ConfigureQueue", policy(on_dead_head=99), "policy"),
    ("ConfigureQueue", policy(agents=work_pb2.AgentList(names=["a/b"])), "policy.agents"),
    ("ConfigureQueue", policy(agents=work_pb2.AgentList(names=["a"] * 65)), "policy.agents"),
    ("ConfigureQueue", policy(default_lease=seconds(0.5)), "policy.default_lease"),
    ("ConfigureQueue", policy(max_hold=seconds(0.5)), "policy.max_hold"),
    ("PauseQueue", pb.PauseQueueRequest(queue="x"), "queue"),
    ("ResumeQueue", pb.ResumeQueueRequest(queue="\0/x"), "queue"),
    ("ReleaseWorker", pb.ReleaseWorkerRequest(pod_uid="uid"), "namespace"),
    *(
        ("ReleaseWorker", pb.ReleaseWorkerRequest(namespace="demo", pod_uid=uid), "pod_uid")
        for uid in ("", "%", "\0", "docs-0/uid-1", "u" * 65)
    ),
    ("ReleaseWorker", pb.ReleaseWorkerRequest(namespace="demo", pod_uid="u", reason="\0"), "reason"),
    ("Explain", pb.ExplainRequest(), "queue"),
    ("Explain", pb.ExplainRequest(queue=QUEUE, item_id=ID), "queue"),
    ("Explain", pb.ExplainRequest(item_id="x"), "item_id"),
    ("Explain", pb.ExplainRequest(queue="x"), "queue"),
]


async def call(stub, method, request):
    """The answer, or the first message of it."""
    answer = getattr(stub, method)(request)
    if method.startswith("Watch"):
        return await answer.read()
    return await answer


@pytest.mark.parametrize(("method", "request_", "field"), CASES, ids=[f"{m}-{f}" for m, _, f in CASES])
async def test_bad_input_names_its_field_and_changes_nothing(it, method, request_, field):
    stub = await it.stub(ROOT)
    async with it.unchanged(), refused(field):
        await call(stub, method, request_)


def first_text(message: Any, bad: bytes) -> bytes | None:
    """A message of that type whose first string, at any depth, is these bytes."""
    for field in message.fields:
        if field.type == field.TYPE_STRING:
            inner: bytes | None = bad
        elif field.type == field.TYPE_MESSAGE and field.message_type.file.package == message.file.package:
            inner = first_text(field.message_type, bad)
        else:
            continue
        if inner is not None:
            return bytes([field.number << 3 | 2, len(inner)]) + inner
    return None


@pytest.mark.parametrize("method", [method.name for method in METHODS])
async def test_text_that_is_not_utf8_is_invalid_and_says_so(it, method):
    message = first_text(METHODS[[m.name for m in METHODS].index(method)].input_type, b"demo/\xff\xfe")
    assert message is not None
    channel = await it.channel(ROOT)
    async with it.unchanged():
        with pytest.raises(InvalidError, match="UTF-8"):
            await channel.unary_unary(SERVICE + method)(message)


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff", b"\x0a\x05demo", bytes(100)], ids=repr)
@pytest.mark.parametrize("method", [method.name for method in METHODS])
async def test_what_is_not_protobuf_is_invalid(it, method, message):
    channel = await it.channel(ROOT)
    async with it.unchanged():
        with pytest.raises(InvalidError):
            await channel.unary_unary(SERVICE + method)(message)


async def test_every_wrong_item_of_a_list_is_named(it):
    stub = await it.stub()
    items = [work(), work(priority=11), work(), work(group="\0")]
    async with it.unchanged():
        with pytest.raises(InvalidError) as raised:
            await stub.Submit(pb.SubmitRequest(queue=QUEUE, items=items))
    assert list(raised.value.violations) == ["items[1].priority", "items[3].group"]


async def test_a_payload_of_exactly_the_cap_and_a_list_of_exactly_a_thousand_are_taken(it):
    stub = await it.stub()
    items = [work(b"") for _ in range(1000)]
    queue = "demo/caps"
    assert len((await stub.Submit(pb.SubmitRequest(queue=queue, items=items))).verdicts) == 1000
    await it.submit(work(b"x" * MIB), queue=queue)
    assert (await it.queue(queue)).submitted_total == 1001


async def test_fields_that_we_do_not_know_are_passed_over(it):
    newer = pb.GetItemsRequest(item_ids=[ID]).SerializeToString() + b"\xf2\x3f\x03new"
    channel = await it.channel()
    answer = pb.GetItemsResponse.FromString(await channel.unary_unary(SERVICE + "GetItems")(newer))
    assert list(answer.missing_ids) == [ID]


async def test_claim_next_is_refused_before_anything_is_settled(tmp_path_factory, it):
    (id,) = await it.submit(work(dedupe_key="next"))
    grant = await it.take(dedupe_key="next")
    stub = await it.stub(AGENT)
    async with it.unchanged():
        with pytest.raises(InvalidError):
            await stub.Ack(pb.AckRequest(acks=[ack(grant)], claim_next=claim(max_items=-1)))
        with pytest.raises(NotFoundError):
            await stub.Ack(pb.AckRequest(acks=[ack(grant)], claim_next=claim(queues=["other/docs"])))
    assert (await it.item(id)).state == work_pb2.WORK_STATE_LEASED
    assert (await it.ack(grant)).status == pb.LEASE_STATUS_OK


# --- Leases that are not the caller's -----------------------------------------------------------


@pytest.fixture(params=FRONTS)
async def fresh(tmp_path, request):
    async with plane(tmp_path, request.param) as plane_:
        yield plane_


async def every_verdict(it, role, item_id, token):
    """What each verb on a lease says of this one."""
    stub = await it.stub(role)
    leases = [work_pb2.Lease(item_id=item_id, token=token)]
    answers = [
        await stub.Renew(pb.RenewRequest(leases=leases)),
        await stub.Release(pb.ReleaseRequest(leases=leases)),
        await stub.Fail(pb.FailRequest(failures=[pb.LeaseFailure(item_id=item_id, token=token)])),
        await stub.Ack(pb.AckRequest(acks=[pb.Ack(item_id=item_id, token=token)])),
    ]
    return [answer.verdicts[0] for answer in answers]


def lost(why, holder=""):
    return pb.LeaseVerdict(status=pb.LEASE_STATUS_LOST, lost_reason=why, holder=holder)


async def test_a_stale_token_loses_and_names_the_present_holder(fresh):
    await fresh.submit()
    old = await fresh.take()
    stub = await fresh.stub(AGENT)
    await stub.Release(pb.ReleaseRequest(leases=[lease(old)]))
    new = await fresh.take(role=TWIN)
    assert new.token > old.token
    holder = "spiffe://mesh.test/ns/demo/agent/docs/pod/docs-0/uid-2"
    async with fresh.unchanged():
        renewed, released, failed, acked = await every_verdict(fresh, AGENT, old.item_id, old.token)
    regranted = lost(pb.LOST_REASON_REGRANTED, holder)
    assert renewed == failed == acked == regranted
    assert released.status == pb.LEASE_STATUS_OK  # the repeat of what was done
    assert (await fresh.ack(new, role=TWIN)).status == pb.LEASE_STATUS_OK


async def test_a_token_of_another_item_is_unknown(fresh):
    await fresh.submit(work(), work())
    one, other = await fresh.claim(max_items=2)
    async with fresh.unchanged():
        verdicts = await every_verdict(fresh, AGENT, one.item_id, other.token)
    assert verdicts == [lost(pb.LOST_REASON_UNKNOWN)] * 4


@pytest.mark.parametrize(
    ("role", "namespace"), [(TWIN, "demo"), (AGENT, "other"), ("user", "demo"), ("user", "other")]
)
async def test_a_lease_of_somebody_else_is_unknown(fresh, role, namespace):
    await fresh.submit(work(), work())
    held, settled = await fresh.claim(max_items=2)
    await fresh.ack(settled)
    stub = await fresh.stub(role, namespace)
    async with fresh.unchanged():
        for grant in (held, settled):
            leases = [lease(grant)]
            failures = [pb.LeaseFailure(item_id=grant.item_id, token=grant.token)]
            for answer in (
                await stub.Renew(pb.RenewRequest(leases=leases)),
                await stub.Release(pb.ReleaseRequest(leases=leases)),
                await stub.Fail(pb.FailRequest(failures=failures)),
                await stub.Ack(pb.AckRequest(acks=[ack(grant)])),
            ):
                assert list(answer.verdicts) == [lost(pb.LOST_REASON_UNKNOWN)]


async def test_a_second_settle_with_another_result_changes_nothing(fresh):
    (id,) = await fresh.submit()
    grant = await fresh.take()
    assert (await fresh.ack(grant, b"first")).status == pb.LEASE_STATUS_OK
    async with fresh.unchanged():
        assert (await fresh.ack(grant, b"first")).status == pb.LEASE_STATUS_OK
        settled = pb.LeaseVerdict(status=pb.LEASE_STATUS_SETTLED, state=work_pb2.WORK_STATE_SUCCEEDED)
        assert await fresh.ack(grant, b"second") == settled
        assert await fresh.ack(grant, b"first", result_content_type="text/plain") == settled
        assert await fresh.fail(grant) == settled
    assert (await fresh.item(id)).result == b"first"


async def test_one_bad_lease_harms_no_other(fresh):
    await fresh.submit(work(), work())
    first, second = await fresh.claim(max_items=2)
    stub = await fresh.stub(AGENT)
    stale = pb.Ack(item_id=first.item_id, token=1)
    answer = await stub.Ack(pb.AckRequest(acks=[ack(first), stale, ack(second), ack(first)]))
    statuses = [verdict.status for verdict in answer.verdicts]
    assert statuses == [pb.LEASE_STATUS_OK, pb.LEASE_STATUS_LOST, pb.LEASE_STATUS_OK, pb.LEASE_STATUS_OK]
    assert (await fresh.queue()).settled_total == 2


# --- Queues of others ---------------------------------------------------------------------------

FOREIGN = [
    ("Submit", pb.SubmitRequest(queue=QUEUE, items=[work()])),
    ("Claim", claim()),
    ("ListItems", pb.ListItemsRequest(queue=QUEUE)),
    ("WatchResults", pb.WatchResultsRequest(queue=QUEUE)),
    ("Explain", pb.ExplainRequest(queue=QUEUE)),
    ("ListDeadLetters", pb.ListDeadLettersRequest(queue=QUEUE)),
    ("Redrive", pb.RedriveRequest(queue=QUEUE)),
    ("Purge", pb.PurgeRequest(queue=QUEUE, all=True)),
    ("ConfigureQueue", policy(max_attempts=1)),
    ("PauseQueue", pb.PauseQueueRequest(queue=QUEUE)),
    ("ResumeQueue", pb.ResumeQueueRequest(queue=QUEUE)),
    ("ReleaseWorker", pb.ReleaseWorkerRequest(namespace="demo", pod_uid="uid-1")),
]


@pytest.mark.parametrize("role", [AGENT, "producer", "user"])
async def test_a_queue_of_another_namespace_is_not_found_and_nothing_leaks(it, role):
    stub = await it.stub(role, "other")
    unknown = await errors_of(stub, [("Claim", claim(queues=["third/none"]))])
    async with it.unchanged():
        errors = await errors_of(stub, FOREIGN)
    allowed = {method: error for method, error in errors.items() if "may not call" not in str(error)}
    assert len(allowed) >= {AGENT: 5, "producer": 4, "user": 12}[role]
    for method, error in allowed.items():
        assert type(error) is NotFoundError, method
        assert str(error) in ("no queue demo/docs", "no namespace demo")
    for error in unknown.values():  # what is not there reads the same
        assert str(error) in (
            "no queue third/none",
            "spiffe://mesh.test/ns/other/producer/someone may not call " + SERVICE + "Claim",
        )


async def errors_of(stub, calls):
    errors = {}
    for method, request in calls:
        with pytest.raises(MeshError) as raised:
            await call(stub, method, request)
        errors[method] = raised.value
    return errors
