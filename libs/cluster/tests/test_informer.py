"""The informer against a home that fails on command."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager

import anyio
import pytest

from libs.cluster import Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import CONFIG_MAP

from .clock import settle
from .fake import FakeCluster


def config(name, value="", **metadata):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "n", "name": name, **metadata},
        "data": {"value": value},
    }


async def change(fake, name, value):
    thing = copy.deepcopy(fake.world.objects[CONFIG_MAP, "n", name])
    thing["data"] = {"value": value}
    await fake.replace(thing)


class Heard(list):
    """A subscriber that notes (name, old value, new value)."""

    def __call__(self, old, new):
        self.append(((new or old)["metadata"]["name"], self._value(old), self._value(new)))

    def _value(self, thing):
        return thing and thing["data"]["value"]


@pytest.fixture
def informer(fake, clock):
    return Informer(fake, CONFIG_MAP, clock=clock.time, sleep=clock.sleep)


@asynccontextmanager
async def running(informer):
    async with anyio.create_task_group() as group:
        group.start_soon(informer.run)
        await settle()
        yield
        group.cancel_scope.cancel()


async def test_list_and_then_every_change_is_told_in_order(fake, informer):
    await fake.create(config("a", "1"))
    heard = Heard()
    informer.subscribe(heard)
    assert informer.age_seconds() == float("inf")
    async with running(informer):
        await informer.synced()
        await fake.create(config("b", "1"))
        await change(fake, "a", "2")
        await fake.delete(CONFIG_MAP, "n", "b")
        await settle()
    assert heard == [("a", None, "1"), ("b", None, "1"), ("a", "1", "2"), ("b", "1", None)]
    assert informer.get("n", "a")["data"]["value"] == "2"
    assert informer.get("n", "b") is None
    assert len(informer.items()) == 1


async def test_late_subscriber_hears_of_what_is_there(fake, informer):
    await fake.create(config("a", "1"))
    async with running(informer):
        informer.subscribe(heard := Heard())
    assert heard == [("a", None, "1")]


async def test_broken_watch_goes_on_from_the_last_revision(fake, world, informer, clock):
    informer.subscribe(heard := Heard())
    async with running(informer):
        await fake.create(config("a", "1"))
        await settle()
        world.cut()
        fake.down = True
        await clock.advance(120)
        fake.down = False
        await change(fake, "a", "2")
        await change(fake, "a", "3")
        await clock.advance(30)
    assert heard == [("a", None, "1"), ("a", "1", "2"), ("a", "2", "3")]
    assert fake.calls.count("list") == 1


async def test_tries_become_rarer_while_the_home_is_down(fake, informer, clock):
    fake.down = True
    async with running(informer):
        await clock.advance(60)
        early = len(fake.calls)
        await clock.advance(600)
        assert 600 / 30 <= len(fake.calls) - early <= 600 / 15 + 1
    assert 7 <= early <= 16


@pytest.mark.parametrize("news", [True, False])
async def test_tries_are_frequent_again_after_a_watch_that_worked(fake, world, informer, clock, news):
    async with running(informer):
        world.cut()
        fake.down = True
        await clock.advance(600)
        fake.down = False
        await clock.advance(30)
        if news:
            await fake.create(config("a"))
        await clock.advance(1 if news else 60)
        before = fake.calls.count("watch")
        world.cut()
        await clock.advance(0.3)
        assert fake.calls.count("watch") == before + 1


async def test_expired_history_is_listed_again_and_only_differences_are_told(fake, world, informer, clock):
    for name in ("same", "changed", "gone", "replaced"):
        await fake.create(config(name, "1"))
    informer.subscribe(heard := Heard())
    async with running(informer):
        heard.clear()
        world.cut()
        await change(fake, "changed", "2")
        await fake.delete(CONFIG_MAP, "n", "gone")
        await fake.delete(CONFIG_MAP, "n", "replaced")
        await fake.create(config("replaced", "2"))
        await fake.create(config("new", "1"))
        world.compact()
        await clock.advance(5)
        assert sorted(heard, key=str) == [
            ("changed", "1", "2"),
            ("gone", "1", None),
            ("new", None, "1"),
            ("replaced", "1", None),
            ("replaced", None, "2"),
        ]
        await change(fake, "new", "2")
        await clock.advance(5)
        assert heard[-1] == ("new", "1", "2")


async def test_bookmarks_spare_the_relist(fake, world, informer, clock):
    async with running(informer):
        world.bookmark()
        await settle()
        world.compact()
        world.cut()
        await clock.advance(5)
        await fake.create(config("a"))
        await clock.advance(5)
        assert informer.get("n", "a")
    assert fake.calls.count("list") == 1


async def test_age_is_the_time_since_anything_was_heard(world, informer, clock):
    async with running(informer):
        await clock.advance(40)
        assert informer.age_seconds() == pytest.approx(40)
        world.bookmark()
        await clock.advance(0)
        assert informer.age_seconds() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("whole", [False, True])
async def test_managed_fields_are_kept_only_if_asked_for(fake, clock, whole):
    await fake.create(config("listed", managedFields=[{"manager": "m"}]))
    informer = Informer(fake, CONFIG_MAP, whole=whole, clock=clock.time, sleep=clock.sleep)
    async with running(informer):
        await fake.create(config("watched", managedFields=[{"manager": "m"}]))
        await settle()
    assert [("managedFields" in thing["metadata"]) for thing in informer.items()] == [whole, whole]


async def test_watches_that_end_at_once_do_not_spin(fake, clock):
    class Ending(FakeCluster):
        async def watch(self, *args, **options):
            self.calls.append("watch")
            return
            yield

    ending = Ending(fake.world)
    async with running(Informer(ending, CONFIG_MAP, clock=clock.time, sleep=clock.sleep)):
        await clock.advance(60)
    assert ending.calls.count("watch") <= 16


async def test_first_list_is_tried_until_it_works(fake, informer, clock):
    fake.down = True
    async with running(informer):
        assert informer.age_seconds() == float("inf")
        fake.down = False
        await clock.advance(1)
        await informer.synced()


async def test_a_bug_of_a_subscriber_concerns_one_object(fake, informer, caplog):
    def sick(old, new):
        if (new or old)["metadata"]["name"] == "poison":
            raise TypeError("unhashable")
        healthy.append(new)

    healthy: list[Object] = []
    await fake.create(config("poison", "1"))
    informer.subscribe(sick)
    informer.subscribe(heard := Heard())
    async with running(informer):
        await informer.synced()
        await fake.create(config("a", "1"))
        await change(fake, "poison", "2")
        await settle()
    assert heard == [("poison", None, "1"), ("a", None, "1"), ("poison", "1", "2")]
    assert [thing["metadata"]["name"] for thing in healthy] == ["a"]
    bugs = [record for record in caplog.records if record.exc_info and "n/poison" in record.getMessage()]
    assert len(bugs) == 2


async def test_an_object_that_cannot_be_kept_is_left_out(fake, clock, caplog):
    def keep(thing):
        return thing | {"data": {"value": thing["data"]["value"].upper()}}

    informer = Informer(fake, CONFIG_MAP, keep=keep, clock=clock.time, sleep=clock.sleep)
    await fake.create(config("poison", []))
    async with running(informer):
        await informer.synced()
        await fake.create(config("a", "x"))
        await settle()
    assert [thing["data"]["value"] for thing in informer.items()] == ["X"]
    assert "n/poison" in caplog.text
