"""KEDA's contract over mTLS, rule by rule."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import REGISTRY

from externalscaler import externalscaler_pb2 as pb
from libs.errors import InvalidError
from libs.rpc.status import error_of

from ..demand import AGE, ITEMS, Demand
from .served import plane, ref, unavailable, until

DOCS = "demo/docs"


def open_streams() -> float:
    labels = [{"method": "StreamIsActive"}, {"method": "StreamMetricSpec"}]
    return sum(REGISTRY.get_sample_value("agentctl_scaler_streams", each) or 0 for each in labels)


@pytest.mark.parametrize(
    ("demand", "active"), [(Demand(), False), (Demand(ready=1), True), (Demand(leased=1), True)]
)
async def test_active_at_one_item_and_inactive_only_when_nothing_is_ready_or_leased(
    scaler, keda, demand, active
):
    scaler.picture.replace({DOCS: demand})
    assert await keda.is_active(ref()) is active
    assert await keda.stream(ref()).active() is active


async def test_both_fields_of_a_metric_say_the_same(scaler, keda):
    scaler.picture.replace({DOCS: Demand(5, 2, ready_since=scaler.clock.now - 1.25)})
    both = ref(metadata={"targetAge": "10s"})
    assert await keda.metrics(both) == {ITEMS: (7, 7.0), AGE: (2, 1.25)}
    assert await keda.metrics(both, ITEMS) == {ITEMS: (7, 7.0)}
    scaler.picture.replace({})
    assert await keda.metrics(both) == {ITEMS: (0, 0.0), AGE: (0, 0.0)}


async def test_the_specs_say_what_a_replica_is_for_whatever_is_known(scaler, keda):
    trigger = ref(metadata={"target": "2.5", "targetAge": "500ms"})
    said = await keda.stub.GetMetricSpec(trigger)
    assert [(each.metricName, each.targetSize, each.targetSizeFloat) for each in said.metricSpecs] == [
        (ITEMS, 3, 2.5),
        (AGE, 1, 0.5),
    ]


async def test_the_stream_of_specs_says_the_same_once_and_stays(scaler, keda):
    trigger = ref(metadata={"target": "4"})
    stream = keda.specs(trigger)
    assert await stream.next() == await keda.stub.GetMetricSpec(trigger)
    scaler.picture.replace({DOCS: Demand(1)})
    scaler.scaler.drain()
    assert await stream.next() is None
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_change_is_pushed_and_nothing_else_is(scaler, keda):
    scaler.picture.replace({})
    stream = keda.stream(ref())
    assert not await stream.active()
    scaler.picture.update({DOCS: Demand(ready=1)})
    assert await stream.active()
    scaler.picture.update({DOCS: Demand(ready=9, leased=1)})
    scaler.picture.update({DOCS: Demand(leased=1)})
    scaler.picture.update({DOCS: Demand()})
    assert not await stream.active()


async def test_two_tenants_do_not_hear_of_each_other(scaler, keda):
    scaler.picture.replace({})
    ours, theirs = keda.stream(ref(namespace="demo")), keda.stream(ref(namespace="other"))
    assert (await ours.active(), await theirs.active()) == (False, False)
    scaler.picture.update({"other/docs": Demand(ready=3)})
    assert await theirs.active()
    assert not await keda.is_active(ref(namespace="demo"))
    assert await keda.metrics(ref(namespace="demo"), ITEMS) == {ITEMS: (0, 0.0)}
    scaler.picture.update({DOCS: Demand(ready=1), "other/docs": Demand()})
    assert (await ours.active(), await theirs.active()) == (True, False)


async def test_two_triggers_of_one_name_are_two(scaler, keda):
    scaler.picture.replace({DOCS: Demand(ready=4), "demo/mail": Demand()})
    docs, mail = ref(metadata={"target": "2"}), ref(metadata={"queue": "mail", "target": "9"})
    streams = [keda.stream(docs), keda.stream(mail)]
    assert [await stream.active() for stream in streams] == [True, False]
    assert [await keda.metrics(each) for each in (docs, mail)] == [{ITEMS: (4, 4.0)}, {ITEMS: (0, 0.0)}]
    targets = [(await keda.stub.GetMetricSpec(each)).metricSpecs[0].targetSizeFloat for each in (docs, mail)]
    assert targets == [2.0, 9.0]


@pytest.mark.parametrize("known", [False, True])
async def test_what_is_not_known_is_an_error_and_never_zero(scaler, keda, known):
    if known:
        scaler.picture.replace({DOCS: Demand(ready=1)})
        scaler.clock.now += 6
    assert await unavailable(keda, ref())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await keda.metrics(ref())
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_holds_while_nothing_is_known(certified):
    async with plane(certified, heartbeat_seconds=0.02) as scaler:
        keda = await scaler.caller()
        scaler.picture.replace({DOCS: Demand(ready=1)})
        stream = keda.stream(ref())
        assert await stream.active()
        scaler.clock.now += 6
        reading = asyncio.ensure_future(stream.active())
        while True:  # what was under way when the picture grew old
            done, _ = await asyncio.wait({reading}, timeout=0.5)
            if not done:
                break
            assert reading.result()
            reading = asyncio.ensure_future(stream.active())
        scaler.picture.replace({})
        assert not await reading


async def test_a_stream_that_opens_while_nothing_is_known_hears_as_soon_as_it_is(scaler, keda):
    stream = keda.stream(ref())
    await until_open(1)
    scaler.picture.replace({})
    assert not await stream.active()


async def test_a_heartbeat_says_the_same_again(certified):
    async with plane(certified, heartbeat_seconds=0.05) as scaler:
        scaler.picture.replace({})
        stream = (await scaler.caller()).stream(ref())
        assert [await stream.active() for _ in range(5)] == [False] * 5


async def test_a_drain_ends_streams_well_so_that_keda_comes_back_soon(scaler, keda):
    stream = keda.stream(ref())
    await until_open(1)
    scaler.scaler.drain()
    assert await stream.next() is None
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_who_left_is_forgotten(scaler, keda):
    streams = [keda.stream(ref()), keda.specs(ref())]
    await until_open(2)
    for stream in streams:
        stream.call.cancel()
    await until_open(0)
    assert not scaler.picture._watches


@pytest.mark.parametrize("method", ["IsActive", "StreamIsActive", "GetMetricSpec", "StreamMetricSpec"])
async def test_a_bad_trigger_is_refused_by_the_name_of_its_field(scaler, keda, method):
    scaler.picture.replace({})
    bad = ref(metadata={"queue": "other/docs", "target": "0"})
    call = getattr(keda.stub, method)(bad)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (call.read() if method.startswith("Stream") else call)
    assert refused_fields(refused.value) == {"scalerMetadata.queue", "scalerMetadata.target"}


async def test_a_metric_that_is_not_there_is_refused(scaler, keda):
    scaler.picture.replace({})
    for request, field in (
        (pb.GetMetricsRequest(scaledObjectRef=ref(), metricName=AGE), "metricName"),
        (pb.GetMetricsRequest(metricName=ITEMS), "namespace"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda.stub.GetMetrics(request)
        assert field in refused_fields(refused.value)


@pytest.mark.parametrize("role", ["user", "agent", "producer", "cp/operator", "cp/gateway"])
async def test_nobody_but_keda_and_an_administrator_is_told_anything(scaler, role):
    scaler.picture.replace({})
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (await scaler.caller(role)).is_active(ref())
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not await (await scaler.caller("administrator")).is_active(ref())


async def test_more_streams_than_there_may_be_are_refused_and_calls_go_on(certified):
    async with plane(certified, max_streams=2) as scaler:
        keda = await scaler.caller()
        scaler.picture.replace({})
        kept = [keda.stream(ref()), keda.specs(ref())]
        assert all([await each.next() is not None for each in kept])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda.stream(ref()).next()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not await keda.is_active(ref())


@pytest.mark.parametrize("front", ["h2corn", "grpcio"])
async def test_two_thousand_streams_of_one_connection_hear_each_of_its_own(certified, front):
    names = [f"fleet-{n}" for n in range(2000)]
    async with plane(certified, front=front) as scaler:
        keda = await scaler.caller()
        scaler.picture.replace({})
        streams = [keda.stream(ref(name)) for name in names]
        assert not any([await stream.active() for stream in streams])
        even = {f"demo/{name}": Demand(ready=1) for name in names[::2]}
        scaler.picture.update(even)
        assert all([await stream.active() for stream in streams[::2]])
        assert not await keda.is_active(ref(names[1]))
        scaler.picture.replace({f"demo/{name}": Demand(leased=1) for name in names[1::2]})
        assert not any([await stream.active() for stream in streams[::2]])
        assert all([await stream.active() for stream in streams[1::2]])


async def test_many_that_leave_at_once_take_nobody_along(scaler, keda):
    scaler.picture.replace({})
    stays = keda.stream(ref())
    leave = [keda.stream(ref(f"fleet-{n}")) for n in range(400)]
    assert not any([await stream.active() for stream in (stays, *leave)])
    for stream in leave:
        stream.call.cancel()
    await until_open(1)
    scaler.picture.update({DOCS: Demand(ready=1)})
    assert await stays.active()


def refused_fields(error: grpc.aio.AioRpcError) -> set[str]:
    """The fields that an INVALID_ARGUMENT names."""
    invalid = error_of(error)
    assert isinstance(invalid, InvalidError)
    return set(invalid.violations)


async def until_open(count: int) -> None:
    async def look() -> bool:
        return open_streams() == count

    await until(look)
