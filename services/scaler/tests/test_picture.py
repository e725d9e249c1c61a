"""How long a picture is good, and who hears of what."""

from __future__ import annotations

import pytest

from libs.errors import UnavailableError

from ..demand import Demand
from ..picture import Picture
from .served import Clock

DOCS, MAIL = "demo/docs", "demo/mail"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def picture(clock: Clock) -> Picture:
    return Picture(clock, stale_seconds=5.0)


def test_nothing_is_known_before_the_first_picture(picture):
    with pytest.raises(UnavailableError):
        picture.demand(DOCS)


def test_a_queue_that_is_not_there_has_nothing_to_do(picture):
    picture.replace({})
    assert picture.demand(DOCS) == Demand()


def test_a_picture_that_nobody_confirms_is_soon_no_more_known(picture, clock):
    picture.replace({DOCS: Demand(1)})
    clock.now += 5.0
    assert picture.demand(DOCS) == Demand(1)
    clock.now += 0.1
    with pytest.raises(UnavailableError):
        picture.demand(DOCS)
    picture.confirm()
    assert picture.demand(DOCS) == Demand(1)


def test_a_new_picture_forgets_what_it_does_not_have(picture):
    picture.replace({DOCS: Demand(1), MAIL: Demand(1)})
    picture.replace({MAIL: Demand(2)})
    assert (picture.demand(DOCS), picture.demand(MAIL)) == (Demand(), Demand(2))


def test_only_who_watches_the_queue_hears_and_only_when_it_turns(picture):
    picture.replace({})
    with picture.watch(DOCS) as docs, picture.watch(DOCS) as too, picture.watch(MAIL) as mail:
        picture.update({DOCS: Demand(1)})
        assert (docs.is_set(), too.is_set(), mail.is_set()) == (True, True, False)
        docs.clear()
        picture.update({DOCS: Demand(7, 2)})
        assert not docs.is_set()
        picture.update({DOCS: Demand(0, 2)})
        assert not docs.is_set()
        picture.update({DOCS: Demand()})
        assert docs.is_set()


def test_all_hear_when_it_is_known_again(picture, clock):
    with picture.watch(DOCS) as moved:
        picture.replace({})
        assert moved.is_set()
        moved.clear()
        picture.confirm()
        assert not moved.is_set()
        clock.now += 6
        picture.confirm()
        assert moved.is_set()


def test_a_queue_that_is_gone_from_the_next_picture_turns_inactive(picture):
    picture.replace({DOCS: Demand(1)})
    with picture.watch(DOCS) as moved:
        picture.replace({})
        assert moved.is_set()


def test_who_left_is_forgotten(picture):
    with picture.watch(DOCS), picture.watch(DOCS):
        pass
    assert not picture._watches


def test_a_picture_that_is_not_whole_knows_only_what_it_has():
    picture = Picture(Clock())
    picture.replace({DOCS: Demand(1)}, is_whole=False)
    assert (picture.find(DOCS), picture.find(MAIL)) == (Demand(1), None)
    assert picture.demand(DOCS) == Demand(1)
    with pytest.raises(UnavailableError):
        picture.demand(MAIL)
    with pytest.raises(UnavailableError, match="not told of all"):
        picture.check()
    with picture.watch(MAIL) as moved:
        picture.replace({DOCS: Demand(1)}, is_whole=False)
        assert not moved.is_set()
        picture.replace({DOCS: Demand(1)})
        assert moved.is_set()
    assert picture.find(MAIL) == Demand()
    picture.check()


def test_an_update_of_a_queue_that_was_not_known_wakes_who_waits():
    picture = Picture(Clock())
    picture.replace({DOCS: Demand(1)}, is_whole=False)
    with picture.watch(MAIL) as moved:
        picture.update({MAIL: Demand()})
        assert moved.is_set()
