"""History files: written, cut short, read back, judged."""

from __future__ import annotations

from loadgen.verify.check import check, missing
from loadgen.verify.faults import Done, schedule
from loadgen.verify.history import SIZE, Ending, Event, Verdict, Writer, chunks, endings, records, story
from loadgen.verify.plan import Kind

SECOND = 1_000_000_000
ITEMS = 20_000  # more than are judged at a time
SUCCEEDED = 5
WORKER = 3 << 8 | 1


def test_a_history_that_was_cut_short_is_read_up_to_there(tmp_path):
    line = (Event.GRANT, 1, WORKER, 7, 1 << 60, 1, 2, 3)
    writer = Writer(tmp_path / "history")
    writer.write([line, line])
    writer.close()
    with (tmp_path / "history").open("r+b") as file:
        file.truncate(SIZE + 5)
    assert [tuple(record) for data in chunks(tmp_path / "history") for record in records(data)] == [line]


def test_ten_endings_fit_a_story():
    past = [Ending(n, n % 3 == 0) for n in range(1, 11)]
    assert endings(story(past)) == past
    assert endings(story([])) == []


def write(folder, skip=()):
    """Every item granted and acked in batches of a hundred, one second each, and told, but for `skip`."""
    worker, watcher = Writer(folder / "worker-0.history"), Writer(folder / "watcher.history")
    for first in range(0, ITEMS, 100):
        at = first // 100 * SECOND
        batch = range(first, first + 100)
        worker.write([(Event.SUBMIT, 0, WORKER, first, 0, at, at, 100)])
        worker.write([(Event.GRANT, 1, WORKER, n, n + 1, at, at, at + 3 * SECOND) for n in batch])
        worker.write([(Event.ACK, Verdict.OK, WORKER, n, n + 1, at, at + 9, 0) for n in batch])
        watcher.write(
            [(Event.RESULT, SUCCEEDED, WORKER, n, n + 1, 1, at + 10, 0) for n in batch if n not in skip]
        )
    worker.close()
    watcher.close()


def test_a_whole_history_is_proved(tmp_path):
    write(tmp_path)
    fault = Done(Kind.CUT, 10 * SECOND + 5, 10 * SECOND + 6)
    proof = check(tmp_path, ITEMS, [fault])
    assert not proof.found.counts
    assert (proof.counts.grants, proof.counts.regrants, proof.counts.settled) == (ITEMS, 0, ITEMS)
    assert proof.recovery == {Kind.CUT: (SECOND + 4) / SECOND}
    assert proof.longest_gap == 1.0


def test_what_is_missing_anywhere_is_lost(tmp_path):
    lost = [0, 123, ITEMS - 1]
    write(tmp_path, skip=lost)
    assert dict(check(tmp_path, ITEMS, []).found.counts) == {"lost": 3}
    assert missing(tmp_path, ITEMS, 2) == lost[:2]


def test_the_schedule_follows_from_the_seed_and_leaves_no_kind_out():
    def first(seed):
        faults = schedule(seed, list(Kind))
        return [next(faults) for _ in range(2 * len(Kind))]

    assert first(7) == first(7)
    assert first(7) != first(8)
    assert {fault.kind for fault in first(7)[: len(Kind)]} == set(Kind)
