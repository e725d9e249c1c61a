from __future__ import annotations

from datetime import timedelta

import pytest

from .. import intake
from ..choices import Dedupe
from ..output import FailedError

ID = "01a228a7-9415-793d-b423-426969c1b8f3"


def test_jsonl_reads_every_field():
    [work] = intake.from_jsonl(
        [
            b'{"payload_json": {"a": [1, "\xc3\xa9"]}, "id": "%s", "content_type": "application/json",'
            b'"dedupe_key": "k", "priority": 3, "delay": "1m30s", "expires_in": 60, "max_attempts": 2,'
            b'"backoff": {"initial": "1s", "maximum": 9.5, "multiplier": 3}, "group": "g",'
            b'"ordering_key": "o", "shard_key": "s", "labels": {"team": "search"}}' % ID.encode()
        ],
        "f",
    )
    assert work.payload == '{"a":[1,"é"]}'.encode()
    assert (work.id, work.content_type, work.dedupe_key, work.priority) == (ID, "application/json", "k", 3)
    assert (work.delay, work.expires_in) == (timedelta(seconds=90), timedelta(seconds=60))
    assert work.backoff is not None
    assert (work.backoff.initial, work.backoff.maximum) == (timedelta(seconds=1), timedelta(seconds=9.5))
    assert (work.max_attempts, work.backoff.multiplier) == (2, 3)
    assert (work.group, work.ordering_key, work.shard_key, work.labels) == ("g", "o", "s", {"team": "search"})


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b'{"payload": "x", "colour": 1}', r"colour: no such field"),
        (b'{"payload": "x", "backoff": {"start": 1}}', r"backoff\.start: no such field"),
        (b'{"payload": "x", "payload": "y"}', r"payload: twice"),
        (b'{"payload": "x", "payload_json": 1}', r"payload: exactly one"),
        (b"{}", r"payload: exactly one"),
        (b'{"payload": 1}', r"payload: a string"),
        (b'{"payload_base64": "!"}', r"payload_base64"),
        (b'{"payload": "\\ud800"}', r"payload: Unicode"),
        (b'{"payload": "\xff"}', r"utf-8"),
        (b'{"payload": "x", "priority": 10}', r"priority: 0\.\.9"),
        (b'{"payload": "x", "priority": true}', r"priority: a whole number"),
        (b'{"payload": "x", "delay": "-5s"}', r"delay"),
        (b'{"payload": "x", "delay": -5}', r"delay: 0s to 366d$"),
        (b'{"payload_json": [NaN]}', r"payload_json: JSON has no NaN"),
        (b'{"payload_json": 1e999}', r"payload_json: JSON has no NaN and no Infinity"),
        (b'{"payload": "x", "delay": 1e99}', r"delay"),
        (b'{"payload": "x", "delay": NaN}', r"delay"),
        (b'{"payload": "x", "expires_in": "367d"}', r"expires_in"),
        (b'{"payload": "x", "labels": {"a": 1}}', r"labels\.a: a string"),
        (b'{"payload": "x", "group": "a\\u0000"}', r"group: no NUL"),
        (b'{"payload": "x", "id": "7"}', r"id: a UUID"),
        (b'{"payload": "%s"}' % (b"x" * 1_048_577), r"payload: at most 1048576 bytes"),
        (b"[1]", r"not a JSON object"),
        (b"nonsense", r"not JSON"),
        (b"[" * 100_000, r"."),
    ],
)
def test_jsonl_refuses_naming_line_and_field(line, names):
    with pytest.raises(FailedError, match=rf"^work\.jsonl:3: .*{names}"):
        intake.from_jsonl([b'{"payload": "fine"}', b"\n", line], "work.jsonl")


def test_the_shortest_time_is_not_no_time():
    [work, other] = intake.from_jsonl(
        [b'{"payload": "x", "expires_in": 1e-7}', b'{"payload": "x", "expires_in": "0.0001ms", "delay": 0}'],
        "f",
    )
    assert (work.expires_in, other.expires_in) == (timedelta(milliseconds=1), timedelta(milliseconds=1))
    assert other.delay == timedelta()


def test_files_carry_their_name_and_type(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello")
    [work] = intake.from_files([tmp_path / "a.txt"])
    assert (work.payload, work.content_type, work.labels) == (b"hello", "text/plain", {"file": "a.txt"})
    with pytest.raises(FailedError, match="a folder"):
        intake.from_files([tmp_path])


def test_lines_become_items_and_blank_ones_do_not():
    assert [work.payload for work in intake.from_lines([b"one\r\n", b"\n", b"\xff two"])] == [
        b"one",
        b"\xff two",
    ]


def test_completed_keeps_what_the_work_says_itself():
    [work] = intake.from_jsonl([b'{"payload": "x", "group": "own", "labels": {"a": "own"}}'], "f")
    whole = intake.completed(work, "given", {"a": "given", "b": "given"}, Dedupe.CONTENT)
    assert (whole.group, whole.labels, whole.id) == ("own", {"a": "own", "b": "given"}, work.id)
    assert whole.dedupe_key.startswith("sha256:")


def test_dedupe_by_name_needs_a_name():
    with pytest.raises(FailedError, match="--dedupe name"):
        intake.completed(intake.from_lines([b"x"])[0], "g", {}, Dedupe.NAME)


def test_labels_are_key_value_pairs():
    assert intake.labels(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    with pytest.raises(FailedError, match="key=value"):
        intake.labels(["nothing"])
