from __future__ import annotations

import itertools
import uuid

from loadgen.ledger import Ledger, balance, new_tag, payload_of


def ledgers(count=2):
    tag = new_tag()
    return [Ledger(tag, process, 100) for process in range(count)]


def test_tags_made_in_the_same_moment_differ():
    assert len({new_tag() for _ in range(2000)}) == 2000


def test_ids_are_version_7_uuids_and_never_the_same():
    one, two = ledgers()
    ids = [*itertools.islice(one.new_ids(), 300), *itertools.islice(two.new_ids(), 300)]
    assert len(set(ids)) == 600
    assert {(uuid.UUID(each).version, str(uuid.UUID(each)) == each) for each in ids} == {(7, True)}


def test_an_item_is_ours_only_with_its_own_payload():
    one, two = ledgers()
    first, second = itertools.islice(one.new_ids(), 2)
    assert len(payload_of(first, 100)) == 100
    assert two.is_ours(first, payload_of(first, 100))
    assert not two.is_ours(first, payload_of(second, 100))
    assert not two.is_ours(first, payload_of(first, 99))
    stranger = next(Ledger("00000000-0000-7000", 0, 100).new_ids())
    assert not two.is_ours(stranger, payload_of(stranger, 100))


def test_items_acked_by_any_process_balance():
    one, two = both = ledgers()
    for index, item_id in enumerate(itertools.islice(one.new_ids(), 2000)):
        one.note_accepted([item_id])
        both[index % 2].note_acked([item_id])
    books = balance(both, 100)
    assert (books.accepted, books.acked, books.violations) == (2000, 2000, [])
    assert 50 < len(set(books.sample)) <= 100
    assert two.accepted == b""


def test_each_item_that_does_not_balance_is_named():
    one, two = both = ledgers()
    lost, twice, never = itertools.islice(one.new_ids(), 3)
    for accepted in (lost, twice):
        one.note_accepted([accepted])
    for ledger in both:
        ledger.note_acked([twice])
    two.note_acked([never])
    violations = balance(both, 100).violations
    assert violations == [
        f"{lost}: accepted 1 times, acked 0 times",
        f"{twice}: accepted 1 times, acked 2 times",
        f"{never}: accepted 0 times, acked 1 times",
    ]
