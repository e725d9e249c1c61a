"""Calls leave nothing that only a search through memory would find: the process collects the young alone."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.errors import InvalidError

from .conftest import opened
from .served import QUEUE, in_memory, plane, seconds

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(autouse=True)
def only_what_is_new():
    """No search looks at what earlier tests left: it is much, and none of ours."""
    gc.freeze()
    yield
    gc.unfreeze()


async def works(it, stub):
    await it.submit()
    await it.ack(await it.take())


async def is_refused(it, stub):
    with pytest.raises(InvalidError):
        await stub.Submit(pb.SubmitRequest(queue="no such name"))


async def waits_in_vain(it, stub):
    assert not (await stub.Claim(pb.ClaimRequest(queues=[QUEUE], wait=seconds(0.02)))).grants


async def leaves_a_parked_claim(it, stub):
    claim = asyncio.ensure_future(stub.Claim(pb.ClaimRequest(queues=[QUEUE], wait=seconds(20))))
    await it.parked(1)
    claim.cancel()
    await it.parked(0)


async def leaves_a_watch(it, stub):
    call = stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE]))
    await call.read()
    call.cancel()


CALLERS = (works, is_refused, waits_in_vain, leaves_a_parked_claim, leaves_a_watch)


async def leave_no_cycles(tmp_path, open_store, caller):
    async with plane(tmp_path, "h2corn", open_store) as it:
        stub = await it.stub()
        await it.submit()
        await it.ack(await it.take())
        await caller(it, stub)
        await asyncio.sleep(0.1)  # for what ends after the answer
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await caller(it, stub)
            await asyncio.sleep(0.1)
            assert gc.collect() < 20
        finally:
            gc.enable()


@pytest.mark.parametrize("caller", CALLERS)
async def test_calls_leave_no_cycles(tmp_path, caller):
    await leave_no_cycles(tmp_path, in_memory, caller)


@pytest.mark.postgres
@pytest.mark.parametrize("caller", CALLERS)
async def test_calls_leave_no_cycles_on_postgres(tmp_path, dsn, caller):
    await leave_no_cycles(tmp_path, partial(opened, dsn), caller)
