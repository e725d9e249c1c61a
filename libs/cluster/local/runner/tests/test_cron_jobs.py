"""CronJobs: times as functions, and real Jobs under a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from libs.cluster.kinds import CRON_JOB, JOB
from libs.cluster.local.runner.cron_jobs import times_of
from libs.errors import InvalidError

from .world import SLEEP, World, job, template, workload


def cron_job(code="pass", **more):
    spec = {"schedule": "0 * * * *", "jobTemplate": {"spec": job("x", template(code))["spec"]}}
    return workload("CronJob", "c", {**spec, **more})


def at(hour, minute=0, day=1):
    return datetime(2026, 6, day, hour, minute, tzinfo=UTC)


def since(moment, **spec):
    created = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"creationTimestamp": created}, "spec": {"schedule": "0 * * * *", **spec}}


def test_nothing_is_due_before_the_first_time():
    times = times_of(since(at(9, 30)), at(9, 59))
    assert (times.due, times.next) == (None, at(10))


def test_of_all_times_missed_the_last_one_is_due():
    assert times_of(since(at(9, 30)), at(14, 5)).due == at(14)
    assert times_of(since(at(9, 30)), at(14)).due == at(14)


def test_a_time_that_is_later_than_its_starting_deadline_is_not_due():
    late = since(at(9, 30), startingDeadlineSeconds=60)
    assert times_of(late, at(14, 2)).due is None
    assert times_of(late, at(14, 1)).due == at(14)


def test_a_schedule_is_read_in_its_time_zone():
    daily = since(at(0), schedule="30 9 * * *", timeZone="Asia/Tokyo")
    assert times_of(daily, at(23, 59)).due == at(0, 30)
    assert times_of(daily, at(23, 59)).next == at(0, 30, day=2)


@pytest.mark.parametrize("spec", [{"schedule": "often"}, {"timeZone": "Nowhere/Town"}, {"timeZone": "../x"}])
def test_what_cannot_be_read_is_refused(spec):
    with pytest.raises(InvalidError):
        times_of(since(at(0), **spec), at(1))


async def jobs(world: World, count: int):
    async def see():
        found = (await world.cluster.list(JOB, "default")).items
        return found if len(found) == count else None

    return await world.until(see)


async def advance(world: World, **by):
    world.clock.ahead += timedelta(**by)
    world.runner.touch(CRON_JOB, "default", "c")


async def scheduled(world: World):
    async def see():
        return (await world.get(CRON_JOB, "c")).get("status", {}).get("lastScheduleTime")

    return await world.until(see)


async def finished(world: World, name: str):
    async def see():
        thing = await world.get(JOB, name)
        return any(each["type"] == "Complete" for each in thing.get("status", {}).get("conditions", ()))

    await world.until(see)


async def test_a_job_is_made_when_it_is_time_and_only_one_for_all_times_missed(world: World):
    await world.apply(cron_job())
    await advance(world, hours=5)
    (made,) = await jobs(world, 1)
    hour = world.clock().replace(minute=0, second=0, microsecond=0)
    assert await scheduled(world) == hour.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert made["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    await finished(world, made["metadata"]["name"])


async def test_forbid_waits_for_the_job_that_runs(world: World):
    await world.apply(cron_job(SLEEP, concurrencyPolicy="Forbid"))
    await advance(world, hours=1)
    (first,) = await jobs(world, 1)
    before = await scheduled(world)
    await advance(world, hours=1)
    await world.ready(first["metadata"]["name"])
    world.runner.touch(CRON_JOB, "default", "c")
    await world.passed()
    assert [each["metadata"]["name"] for each in await jobs(world, 1)] == [first["metadata"]["name"]]
    assert await scheduled(world) == before
    await world.cluster.delete(JOB, "default", first["metadata"]["name"])
    await world.gone(JOB, first["metadata"]["name"])
    (second,) = await jobs(world, 1)
    assert second["metadata"]["name"] != first["metadata"]["name"]


async def test_replace_ends_the_job_that_runs(world: World):
    await world.apply(cron_job(SLEEP, concurrencyPolicy="Replace"))
    await advance(world, hours=1)
    (first,) = await jobs(world, 1)
    await world.ready(first["metadata"]["name"])
    await advance(world, hours=1)
    await world.gone(JOB, first["metadata"]["name"])
    (second,) = await jobs(world, 1)
    assert second["metadata"]["name"] != first["metadata"]["name"]


async def test_old_jobs_are_pruned(world: World):
    await world.apply(cron_job(successfulJobsHistoryLimit=1))
    names = []
    for _ in range(3):
        await advance(world, hours=1)

        async def new():
            found = [job["metadata"]["name"] for job in (await world.cluster.list(JOB, "default")).items]
            return next((name for name in found if name not in names), None)

        names.append(await world.until(new))
        await finished(world, names[-1])
    (left,) = await jobs(world, 1)
    assert left["metadata"]["name"] == names[-1]


async def test_a_suspended_one_makes_nothing(world: World):
    await world.apply(cron_job(suspend=True))
    await advance(world, hours=3)
    await world.passed()
    assert (await world.cluster.list(JOB, "default")).items == []
    await world.apply(cron_job(suspend=False))
    (made,) = await jobs(world, 1)
    await finished(world, made["metadata"]["name"])
