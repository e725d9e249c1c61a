"""The verbs: what shares an RPC, and what each caller gets of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError, UnavailableError
from libs.work import (
    Backoff,
    Client,
    ItemIdConflictError,
    Lease,
    LeaseLostError,
    QueueFullError,
    SettledError,
    Submission,
    Work,
    new_id,
)
from libs.work.task import clock

from .fake import FakeCoordination

QUEUE = "demo/mail"
SOON = timedelta(seconds=5)


def test_ids_are_version_7_and_sort_in_the_order_they_were_made() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {id[14] for id in ids} == {"7"}
    assert {id[19] for id in ids} <= set("89ab")


async def test_a_lone_call_leaves_at_once_and_concurrent_ones_share_the_next(
    client: Client, server: FakeCoordination
) -> None:
    server.running.clear()
    first = asyncio.create_task(client.submit(QUEUE, Work(b"first")))
    await server.until(lambda: len(server.of("Submit")) == 1)
    rest = [asyncio.create_task(client.submit(QUEUE, Work(b"%d" % n))) for n in range(2500)]
    await asyncio.sleep(0)
    server.running.set()
    await asyncio.gather(first, *rest)
    assert [len(request.items) for request in server.of("Submit")] == [1, 1000, 1000, 500]


async def test_a_request_stays_below_three_mebibytes(client: Client, server: FakeCoordination) -> None:
    outcomes = await client.submit_all(QUEUE, [Work(bytes(1 << 20)) for _ in range(5)])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Submission"] * 5
    assert all(request.ByteSize() <= 3 << 20 for request in server.of("Submit"))


async def test_each_caller_gets_its_own_verdict(client: Client, server: FakeCoordination) -> None:
    server.cap = 2
    works = [Work(b"1"), Work(b"2"), Work(b"3")]
    works.append(Work(b"other", id=works[0].id))
    outcomes = await asyncio.gather(
        *(client.submit(QUEUE, work) for work in works[:3]), return_exceptions=True
    )
    assert len(server.of("Submit")) == 1
    assert outcomes[:2] == [Submission(work.id, False, work_pb2.WORK_STATE_UNSPECIFIED) for work in works[:2]]
    assert isinstance(outcomes[2], QueueFullError)
    assert (outcomes[2].depth, outcomes[2].cap) == (2, 2)
    server.cap = 3
    with pytest.raises(ItemIdConflictError, match=works[0].id):
        await client.submit(QUEUE, works[3])


async def test_one_that_the_server_refuses_harms_no_other(client: Client, server: FakeCoordination) -> None:
    works = [Work(b"good"), Work(server.refuse_payload), Work(b"better")]
    outcomes = await asyncio.gather(*(client.submit(QUEUE, work) for work in works), return_exceptions=True)
    assert isinstance(outcomes[1], InvalidError)
    assert outcomes[1].violations == {"items[0].payload": "not this one"}
    assert {item.payload for item in server.ready} == {b"good", b"better"}


@pytest.mark.parametrize(
    ("field", "work"),
    [
        ("payload", Work(bytes((1 << 20) + 1))),
        ("priority", Work(priority=10)),
        ("dedupe_key", Work(dedupe_key="é" * 129)),
        ("group", Work(group="a\0b")),
        ("ordering_key", Work(ordering_key="\ud800")),
        ("delay", Work(delay=timedelta(days=400))),
        ("expires_in", Work(expires_in=timedelta(seconds=-1))),
        ("backoff.multiplier", Work(backoff=Backoff(multiplier=0.5))),
        ("labels['a=b']", Work(labels={"a=b": ""})),
        ("labels", Work(labels={str(n): "" for n in range(33)})),
    ],
)
async def test_what_is_out_of_bounds_never_leaves(
    client: Client, server: FakeCoordination, field: str, work: Work
) -> None:
    with pytest.raises(InvalidError) as refused:
        await client.submit(QUEUE, work)
    assert field in refused.value.violations
    assert not server.requests


async def test_submit_all_says_what_became_of_each(client: Client, server: FakeCoordination) -> None:
    outcomes = await client.submit_all(QUEUE, [Work(b"a"), Work(priority=-1), Work(b"b")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Submission", "InvalidError", "Submission"]
    assert len(server.of("Submit")) == 1


async def test_a_cancelled_caller_withdraws_what_has_not_left(
    client: Client, server: FakeCoordination
) -> None:
    server.running.clear()
    first = asyncio.create_task(client.submit(QUEUE, Work(b"1")))
    await server.until(lambda: server.of("Submit"))
    second = asyncio.create_task(client.submit(QUEUE, Work(b"2")))
    third = asyncio.create_task(client.submit(QUEUE, Work(b"3")))
    await asyncio.sleep(0)
    second.cancel()
    server.running.set()
    await asyncio.gather(first, third)
    assert [item.payload for item in server.ready] == [b"1", b"3"]


async def test_an_error_is_everyones_own(client: Client, server: FakeCoordination) -> None:
    server.down = True
    works = [Work(b"%d" % n) for n in range(3)]
    outcomes = await asyncio.gather(*(client.submit(QUEUE, work) for work in works), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3


async def test_claimants_share_one_parked_rpc_and_each_gets_its_own(
    client: Client, server: FakeCoordination
) -> None:
    claims = [asyncio.create_task(client.claim([QUEUE], wait=SOON)) for _ in range(50)]
    await server.until(lambda: server.of("Claim"))
    assert server.of("Claim")[0].max_items == 50
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(50)])
    tasks = [task for claim in claims for task in await claim]
    assert len({task.id for task in tasks}) == 50
    assert all(server.held[task.id] == task.token for task in tasks)


async def test_a_claim_that_does_not_wait_does_not_queue_behind_one_that_does(
    client: Client, server: FakeCoordination
) -> None:
    parked = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    await server.until(lambda: server.of("Claim"))
    async with asyncio.timeout(1):
        assert await client.claim([QUEUE]) == []
    parked.cancel()


async def test_a_lease_does_not_run_while_its_claim_is_parked(
    client: Client, server: FakeCoordination
) -> None:
    server.lease = 0.3
    claim = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    await server.until(lambda: server.of("Claim"))
    await asyncio.sleep(server.lease)
    await client.submit(QUEUE, Work(b"late"))
    (task,) = await claim
    assert server.lease / 2 < task.deadline - clock() <= server.lease


async def test_an_empty_wait_ends_empty(client: Client, server: FakeCoordination) -> None:
    async with asyncio.timeout(2):
        assert await client.claim([QUEUE], wait=timedelta(seconds=0.1)) == []
    assert len(server.of("Claim")) == 1


async def test_what_a_cancelled_claimant_was_granted_goes_back_uncounted(
    client: Client, server: FakeCoordination
) -> None:
    claim = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    other = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    await server.until(lambda: server.of("Claim"))
    claim.cancel()
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    (task,) = await other
    await server.until(lambda: server.released)
    assert task.id not in server.released
    assert sum(server.attempts.values()) == 1


async def test_a_claim_nobody_waits_for_is_taken_back(client: Client, server: FakeCoordination) -> None:
    claim = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    await server.until(lambda: server.of("Claim"))
    claim.cancel()
    await server.until(lambda: len(server.of("Claim")) == 2)
    parked, look = server.of("Claim")
    assert look.request_id == parked.request_id
    assert not look.HasField("wait")
    assert await client.claim([QUEUE]) == []


async def test_what_an_answer_that_was_lost_had_in_it_is_given_back_at_the_end(
    client: Client, server: FakeCoordination
) -> None:
    claim = asyncio.create_task(client.claim([QUEUE], wait=SOON))
    await server.until(lambda: server.of("Claim"))
    server.running.clear()
    claim.cancel()
    await server.until(lambda: len(server.of("Claim")) == 2)
    work = Work(b"a").to_pb()
    server.items[work.id] = work
    server.ready.append(work)
    server.lose_answers["Claim"] = 1
    server.running.set()
    await server.until(lambda: server.held)
    await client.close()
    assert server.released == [work.id]


async def test_more_parked_calls_than_a_connection_takes_get_another(
    client: Client, server: FakeCoordination
) -> None:
    leases = [timedelta(seconds=n) for n in range(1, 451)]
    claims = [asyncio.create_task(client.claim([QUEUE], wait=SOON, lease=lease)) for lease in leases]
    await server.until(lambda: len(server.of("Claim")) == len(claims))
    async with asyncio.timeout(1):
        await client.submit("demo/other", Work(b"not behind them"))
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)


async def test_a_claim_is_replayed_as_the_very_same_request(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    server.lose_answers["Claim"] = 6
    (task,) = await client.claim([QUEUE], wait=timedelta(seconds=10))
    claims = server.of("Claim")
    assert len(claims) == 7
    assert all(request == claims[0] for request in claims)
    assert task.attempt == 1
    assert server.held == {task.id: task.token}


async def test_during_an_outage_a_claim_is_not_empty_but_unavailable(
    client: Client, server: FakeCoordination
) -> None:
    server.down = True
    with pytest.raises(UnavailableError):
        await client.claim([QUEUE], wait=timedelta(seconds=1))


async def test_leases_are_settled_together(client: Client, server: FakeCoordination) -> None:
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(8)])
    tasks = await client.claim([QUEUE], max_items=8)
    renewed = await asyncio.gather(*(client.renew(task) for task in tasks))
    assert all(renewal.expires_in == timedelta(seconds=30) for renewal in renewed)
    await asyncio.gather(*(client.ack(task, b"done") for task in tasks[:4]))
    await asyncio.gather(*(client.fail(task, "x" * 5000, retryable=False) for task in tasks[4:6]))
    await asyncio.gather(*(client.release(task, "enough") for task in tasks[6:]))
    assert [len(server.of(verb)) for verb in ("Claim", "Renew", "Ack", "Fail", "Release")] == [1] * 5
    assert len(server.results) == 4
    assert [len(failure.error) for failure in server.failures] == [1024, 1024]
    assert set(server.released) == {task.id for task in tasks[6:]}


async def test_a_lease_that_is_not_ours_any_more(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    (task,) = await client.claim([QUEUE])
    await client.ack(task, b"one")
    await client.ack(task, b"one")
    with pytest.raises(SettledError, match="SUCCEEDED"):
        await client.ack(task, b"two")
    with pytest.raises(LeaseLostError) as lost:
        await client.renew(Lease(task.id, task.token - 1))
    assert (lost.value.lost_reason, lost.value.holder) == ("REGRANTED", "somebody")


async def test_an_ack_is_replayed_while_the_lease_lives(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    (task,) = await client.claim([QUEUE])
    server.lose_answers["Ack"] = 6
    await client.ack(task, b"one")
    assert len(server.results) == 1
    server.down = True
    with pytest.raises(UnavailableError):
        await client.ack(Lease(task.id, task.token), b"one")


async def test_a_result_that_is_too_large_is_refused_here(client: Client, server: FakeCoordination) -> None:
    with pytest.raises(InvalidError) as refused:
        await client.ack(Lease("x", 1), bytes((1 << 20) + 1))
    assert "result" in refused.value.violations
    assert not server.requests
