"""Who may what: the mesh table at the door, and behind it what each caller sees and reaches."""

from __future__ import annotations

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import DeniedError, InvalidError, MeshError, NotFoundError
from libs.mesh import METHODS, may_call

from .served import AGENT, FRONTS, QUEUE, ROOT, SERVICE, TWIN, lease, plane, work

ROLES = [AGENT, "producer", "user", ROOT, "cp/scaler", "cp/operator", "cp/gateway"]
OUTSIDER = "agent/other"  # of another fleet in the same namespace
WORKING = {"Claim", "Renew", "Ack", "Fail", "Release"}
OPERATING = {"ConfigureQueue", "PauseQueue", "ResumeQueue", "ReleaseWorker"}
DEAD_LETTERS = {"ListDeadLetters", "Redrive", "Purge"}
PRODUCING = {"Submit", "Cancel", "GetItems", "ListItems", "WatchResults"}
NUMBERS = {"GetQueues", "WatchQueues"}
MAY = {  # written by hand; what the table says must be this
    AGENT: PRODUCING | WORKING | NUMBERS | {"Explain", "ReleaseWorker"},
    "producer": PRODUCING | NUMBERS | {"Explain"},
    "user": PRODUCING | WORKING | NUMBERS | OPERATING | DEAD_LETTERS | {"Explain"},
    ROOT: PRODUCING | WORKING | NUMBERS | OPERATING | DEAD_LETTERS | {"Explain"},
    "cp/scaler": NUMBERS,
    "cp/operator": NUMBERS | OPERATING | {"Explain"},
    "cp/gateway": PRODUCING | NUMBERS | {"Explain"},
}

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(params=FRONTS)
async def it(tmp_path, request):
    async with plane(tmp_path, request.param) as plane_:
        yield plane_


@pytest.mark.parametrize("role", ROLES)
async def test_the_door_lets_in_whom_the_table_names_and_nobody_else(it, role):
    methods = [method for method in METHODS if method.startswith(SERVICE)]
    assert len(methods) == 20
    channel = await it.channel(role)
    let_in = set()
    for method in methods:
        call = channel.unary_stream(method)(b"") if "Watch" in method else channel.unary_unary(method)(b"")
        try:
            await (call.read() if "Watch" in method else call)
        except DeniedError as error:
            assert "may not call " + method in str(error)  # noqa: PT017
            continue
        except InvalidError:
            pass  # inside, and refused there for being empty
        let_in.add(method.removeprefix(SERVICE))
    assert let_in == MAY[role]
    kind = role if role.startswith("cp/") else role.split("/")[0]
    assert let_in == {method.removeprefix(SERVICE) for method in methods if may_call(kind, method)}


@pytest.mark.parametrize(("role", "namespace"), [(OUTSIDER, "demo"), (AGENT, "other")])
async def test_an_agent_reaches_the_queues_of_its_fleet_only(it, role, namespace):
    (id,) = await it.submit()
    stub = await it.stub(role, namespace)
    async with it.unchanged():
        for call in (
            stub.Submit(pb.SubmitRequest(queue=QUEUE, items=[work()])),
            stub.Claim(pb.ClaimRequest(queues=[QUEUE])),
            stub.Claim(pb.ClaimRequest(queues=[f"{namespace}/{role.split('/')[1]}", QUEUE])),
            stub.ListItems(pb.ListItemsRequest(queue=QUEUE)),
            stub.Explain(pb.ExplainRequest(queue=QUEUE)),
            stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE)).read(),
        ):
            with pytest.raises(NotFoundError, match=r"^no queue demo/docs$"):
                await call
        for call in (
            stub.Explain(pb.ExplainRequest(item_id=id)),
            stub.WatchResults(pb.WatchResultsRequest(item_ids=[id])).read(),
        ):
            with pytest.raises(NotFoundError):
                await call
        assert list((await stub.GetItems(pb.GetItemsRequest(item_ids=[id]))).missing_ids) == [id]
        (verdict,) = (await stub.Cancel(pb.CancelRequest(item_ids=[id]))).verdicts
        assert verdict == pb.CancelVerdict(status=pb.CANCEL_STATUS_NOT_FOUND)
        assert not (await stub.GetQueues(pb.GetQueuesRequest(queues=[QUEUE]))).queues
        assert not (await stub.GetQueues(pb.GetQueuesRequest())).queues
        first = await stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE])).read()
        assert not first.queues


async def test_a_policy_can_let_another_fleet_in(it):
    await it.configure(agents=work_pb2.AgentList(names=["other"]))
    await it.submit()
    assert len(await it.claim(role=OUTSIDER)) == 1
    await it.submit(role=OUTSIDER)
    await it.configure(agents=work_pb2.AgentList())
    with pytest.raises(NotFoundError):
        await it.claim(role=OUTSIDER)


async def test_an_agent_sees_what_it_holds_or_submitted(it):
    ids = await it.submit(work(b"1"), work(b"2"))
    held = await it.take()
    (own,) = await it.submit(work(b"3"), role=AGENT)
    stub = await it.stub(AGENT)

    async def seen():
        return [item.id for item in (await stub.ListItems(pb.ListItemsRequest(queue=QUEUE))).items]

    assert sorted(await seen()) == sorted([held.item_id, own])
    answer = await stub.GetItems(pb.GetItemsRequest(item_ids=[*ids, own]))
    assert list(answer.missing_ids) == [ids[1]]
    with pytest.raises(NotFoundError):
        await stub.Explain(pb.ExplainRequest(item_id=ids[1]))
    await stub.Release(pb.ReleaseRequest(leases=[lease(held)]))
    assert await seen() == [own]
    twin = await it.stub(TWIN)  # pods of one agent are one submitter
    assert [i.id for i in (await twin.ListItems(pb.ListItemsRequest(queue=QUEUE))).items] == [own]
    verdicts = (await twin.Cancel(pb.CancelRequest(item_ids=[own, ids[0]]))).verdicts
    assert [v.status for v in verdicts] == [pb.CANCEL_STATUS_CANCELED, pb.CANCEL_STATUS_NOT_FOUND]


async def test_a_producer_sees_and_cancels_its_own(it):
    (mine,) = await it.submit(work(b"mine"), role="producer/a")
    (theirs,) = await it.submit(work(b"theirs"), role="producer/b")
    stub = await it.stub("producer/a")
    assert [i.id for i in (await stub.ListItems(pb.ListItemsRequest(queue=QUEUE))).items] == [mine]
    assert list((await stub.GetItems(pb.GetItemsRequest(item_ids=[mine, theirs]))).missing_ids) == [theirs]
    with pytest.raises(NotFoundError):
        await stub.Explain(pb.ExplainRequest(item_id=theirs))
    with pytest.raises(NotFoundError):
        await stub.WatchResults(pb.WatchResultsRequest(item_ids=[mine, theirs])).read()
    verdicts = (await stub.Cancel(pb.CancelRequest(item_ids=[theirs, mine]))).verdicts
    assert [v.status for v in verdicts] == [pb.CANCEL_STATUS_NOT_FOUND, pb.CANCEL_STATUS_CANCELED]
    assert (await it.item(theirs)).state == work_pb2.WORK_STATE_READY


async def test_a_watch_of_a_queue_tells_each_of_its_own(it):
    (mine,) = await it.submit(work(b"mine"), role="producer/a")
    await it.submit(work(b"theirs"), role="producer/b")
    for grant in await it.claim(max_items=2):
        await it.ack(grant)
    stub = await it.stub("producer/a")
    messages = [m async for m in stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE))]
    assert [item.id for message in messages for item in message.results] == [mine]
    user = await it.stub("user")
    messages = [m async for m in user.WatchResults(pb.WatchResultsRequest(queue=QUEUE))]
    assert len([item for message in messages for item in message.results]) == 2


async def test_queues_are_listed_within_a_namespace_and_everywhere_for_those_above(it):
    await it.submit(queue="demo/docs", role=ROOT)
    await it.submit(queue="demo/mail", role=ROOT)
    await it.submit(queue="other/docs", role=ROOT)

    async def names(role, **which):
        stub = await it.stub(role)
        return [queue.name for queue in (await stub.GetQueues(pb.GetQueuesRequest(**which))).queues]

    everything = ["demo/docs", "demo/mail", "other/docs"]
    assert await names("user") == everything[:2]
    assert await names("producer") == everything[:2]
    assert await names(AGENT) == everything[:1]
    for role in (ROOT, "cp/scaler", "cp/operator", "cp/gateway"):
        assert await names(role) == everything
        assert await names(role, namespace="other") == everything[2:]
    assert await names("user", queues=everything) == everything[:2]
    with pytest.raises(NotFoundError, match=r"^no namespace other$"):
        await names("user", namespace="other")


async def test_a_user_has_every_verb_in_its_namespace_and_none_elsewhere(it):
    await it.submit(queue="other/docs", role=ROOT)
    stub = await it.stub("user")
    assert (await stub.PauseQueue(pb.PauseQueueRequest(queue=(await it.configure()).name))).queue.paused
    async with it.unchanged():
        with pytest.raises(MeshError) as raised:
            await stub.PauseQueue(pb.PauseQueueRequest(queue="other/docs"))
    assert str(raised.value) == "no queue other/docs"
    root = await it.stub(ROOT)
    assert (await root.PauseQueue(pb.PauseQueueRequest(queue="other/docs"))).queue.paused


async def test_two_pods_of_one_name_are_two_holders(it):
    await it.submit()
    grant = await it.take()
    async with it.unchanged():
        assert (await it.ack(grant, role=TWIN)).lost_reason == pb.LOST_REASON_UNKNOWN
    assert (await it.ack(grant)).status == pb.LEASE_STATUS_OK
