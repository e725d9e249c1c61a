"""Hand-written stories, one for each way to break a rule, and the honest ones next to them."""

from __future__ import annotations

import pytest

from loadgen.verify.history import Ending, Event, Record, Verdict, story
from loadgen.verify.rules import Circumstances, Judge

SECOND = 1_000_000_000
ITEM, POISON = 5, 17
SUCCEEDED, DEAD, CANCELED = 5, 6, 7
ANNA, BEN = 1 << 8, 2 << 8
EXPIRED, FAILED = True, False


def grant(token, at, *, worker=ANNA, attempt=1, lease=3.0):
    """Answered a tenth of a second after it was asked for at `at` seconds."""
    return Record(Event.GRANT, attempt, worker, ITEM, token, ns(at), ns(at + 0.1), ns(at + lease))


def use(event, token, at, verdict=Verdict.OK, *, worker=ANNA, ends=0.0):
    return Record(event, verdict, worker, ITEM, token, ns(at), ns(at + 0.1), ns(ends))


def ack(token, at, verdict=Verdict.OK, *, worker=ANNA):
    return use(Event.ACK, token, at, verdict, worker=worker)


def result(token, *past, attempt=1, worker=ANNA, state=SUCCEEDED, at=100.0):
    told = story(Ending(*ending) for ending in past)
    return Record(Event.RESULT, state, worker, ITEM, token, attempt, ns(at), told)


def ns(seconds):
    return round(seconds * SECOND)


def kinds(*records, item=ITEM, accepted=True, **circumstances):
    judge = Judge(Circumstances(**circumstances))
    judge.judge(item, accepted, records)
    return set(judge.found.counts)


HONEST = {
    "one grant, one ack": [grant(1, 0), ack(1, 1), result(1)],
    "its lease ran out and it was granted again": [
        grant(1, 0),
        grant(2, 3.2, worker=BEN, attempt=2),
        ack(2, 4, worker=BEN),
        ack(1, 5, Verdict.LOST),
        result(2, (1, EXPIRED), attempt=2, worker=BEN),
    ],
    "acked after its lease ran out": [grant(1, 0), ack(1, 9), result(1, (1, EXPIRED))],
    "failed and granted again": [
        grant(1, 0),
        use(Event.FAIL, 1, 1),
        grant(2, 1.2, attempt=2),
        ack(2, 2),
        result(2, (1, FAILED), attempt=2),
    ],
    "released and granted again": [
        grant(1, 0), use(Event.RELEASE, 1, 1), grant(2, 1.2, worker=BEN), ack(2, 2, worker=BEN),
        result(2, worker=BEN),
    ],
    "the release of a killed worker may have come to pass": [
        grant(1, 0), use(Event.RELEASE, 1, 0.5, Verdict.UNKNOWN), grant(2, 1), ack(2, 2), result(2),
    ],
    "renewed for longer": [
        grant(1, 0), use(Event.RENEW, 1, 2, ends=5.0), grant(2, 5.1, attempt=2), ack(2, 6),
        result(2, (1, EXPIRED), attempt=2),
    ],
    "a worker was killed when it had acked": [grant(1, 0), result(1)],
    "a grant that nobody saw ran out before": [
        grant(2, 9, attempt=2), ack(2, 10), result(2, (1, EXPIRED), attempt=2),
    ],
    "two grants in flight at once may be answered in any order": [
        grant(1, 0), use(Event.RELEASE, 1, 0.05), grant(2, 0.06), ack(2, 1), result(2),
    ],
    "a fail that was repeated, while it was granted again": [
        grant(1, 0),
        Record(Event.FAIL, Verdict.OK, ANNA, ITEM, 1, ns(1), ns(5), 0),
        grant(2, 2, attempt=2),
        ack(2, 3),
        result(2, (1, FAILED), attempt=2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("records", HONEST.values(), ids=HONEST)
def test_an_honest_story_is_believed(records):
    assert kinds(*records) == set()


BROKEN = {
    "lost": [grant(1, 0)],
    "two grants with one token": [
        grant(1, 0), use(Event.RELEASE, 1, 0.5, Verdict.UNKNOWN), grant(1, 9, worker=BEN),
        ack(1, 10, worker=BEN), result(1, worker=BEN),
    ],
    "a later grant has a smaller token": [grant(2, 0), grant(1, 9), ack(2, 10), result(2)],
    "a live lease was refused": [
        grant(1, 0), use(Event.RENEW, 1, 2, ends=5), ack(1, 4.5, Verdict.LOST),
        grant(2, 4.6, attempt=2), ack(2, 5), result(2, (1, EXPIRED), attempt=2),
    ],
    "two live owners": [grant(1, 0), grant(2, 2.8, worker=BEN), ack(2, 4, worker=BEN), result(2, worker=BEN)],
    "a lost lease was honoured by RENEW": [
        grant(1, 0), grant(2, 4, worker=BEN), use(Event.RENEW, 1, 5, ends=6), ack(2, 6, worker=BEN),
        result(2, worker=BEN),
    ],
    "a lost lease was honoured by FAIL": [
        grant(1, 0), grant(2, 4, worker=BEN, attempt=2), use(Event.FAIL, 1, 5), ack(2, 6, worker=BEN),
        result(2, (1, EXPIRED), worker=BEN, attempt=2),
    ],
    "a lost lease was honoured by RELEASE": [
        grant(1, 0), grant(2, 4, worker=BEN), use(Event.RELEASE, 1, 5), ack(2, 6, worker=BEN),
        result(2, worker=BEN),
    ],
    "granted again though it was settled": [grant(1, 0), ack(1, 1), grant(2, 5), result(1)],
    "settled twice": [grant(1, 0), ack(1, 1), grant(2, 5), ack(2, 6), result(2)],
    "told twice by WatchResults": [grant(1, 0), ack(1, 1), result(1), result(1)],
    "another result than the one acked": [grant(1, 0), ack(1, 1), result(1, worker=BEN)],
    "a result of somebody who did not hold it": [grant(1, 0), result(1, worker=BEN)],
    "settled by a lease that was lost": [grant(1, 0), grant(2, 4, worker=BEN), result(1)],
    "an ack that settled was told LOST": [grant(1, 0), ack(1, 1, Verdict.LOST), result(1)],
    "an ack that settled was told SETTLED": [grant(1, 0), ack(1, 1, Verdict.SETTLED), result(1)],
    "settled after the lease was given up": [grant(1, 0), use(Event.RELEASE, 1, 1), result(1)],
    "dead against the rules": [grant(1, 0), result(0, (1, FAILED), state=DEAD)],
    "ended as WORK_STATE_CANCELED": [grant(1, 0), result(0, state=CANCELED)],
    "attempts: a later grant has a smaller one": [
        grant(1, 0, attempt=2), grant(2, 9), ack(2, 10), result(2, (1, EXPIRED), attempt=2),
    ],
    "attempts: a failed one was not counted": [
        grant(1, 0), use(Event.FAIL, 1, 1), grant(2, 2), ack(2, 3), result(2, (1, FAILED)),
    ],
    "attempts: the history is not what was counted": [
        grant(1, 0), ack(1, 1), result(1, (2, FAILED), attempt=3),
    ],
    "attempts: not what the history says": [grant(1, 0), ack(1, 1), result(1, attempt=2)],
    "attempts: one that ran out was not counted": [
        grant(1, 0), grant(2, 4), ack(2, 5), result(2, (1, EXPIRED), at=6),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "records"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rule_is_named(kind, records):
    assert kind in kinds(*records)


def test_an_item_that_was_never_accepted_need_not_settle():
    assert kinds(grant(1, 0), accepted=False) == set()


def test_a_clock_that_went_ahead_may_end_a_lease_early():
    early = [grant(1, 0), grant(2, 1, attempt=2), ack(2, 2), result(2, (1, EXPIRED), attempt=2)]
    assert kinds(*early) == {"two live owners"}
    assert kinds(*early, steps=[(ns(0.5), ns(0.6), 2.5)]) == set()
    assert kinds(*early, steps=[(ns(0.5), ns(0.6), 1.0)]) == {"two live owners"}
    assert kinds(*early, steps=[(ns(0.5), ns(0.6), -2.5)]) == {"two live owners"}
    assert kinds(*early, steps=[(ns(5), ns(6), 2.5)]) == {"two live owners"}


def test_a_lease_that_an_outage_ended_need_not_be_counted():
    forgiven = [grant(1, 0), grant(2, 4), ack(2, 5), result(2, (1, EXPIRED), at=6)]
    assert kinds(*forgiven, outages=[(ns(1), ns(3))]) == set()
    assert kinds(*forgiven, outages=[(ns(7), ns(9))]) == {"attempts: one that ran out was not counted"}


def test_many_lost_answers_may_cost_an_attempt():
    costly = [grant(9, 50, attempt=2), ack(9, 51), result(9, attempt=2)]
    assert kinds(*costly) == {"attempts: not what the history says"}
    assert kinds(grant(1, 0), *costly, disturbances=[ns(n) for n in (1, 2, 3, 4)]) == set()


@pytest.mark.parametrize("attempts", [2, 3])
def test_what_must_fail_dies_when_its_attempts_are_used_up(attempts):
    past = [(n, FAILED) for n in range(1, attempts + 1)]
    story = [grant(n, n, attempt=n) for n, _ in past] + [use(Event.FAIL, n, n + 0.2) for n, _ in past]
    found = kinds(*story, result(0, *past, attempt=attempts, state=DEAD), item=POISON)
    assert found == ({"dead against the rules"} if attempts == 2 else set())
