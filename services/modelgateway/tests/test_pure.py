"""Order of endpoints, reading of pools, events and tokens: without I/O."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.errors import PreconditionError

from ..asked import Operation, read
from ..events import Cutter, data_of
from ..pools import read_pool, span
from ..routing import FAILURES, Router
from ..tokens import Meter, Tokens

URL = "https://api.example.com/v1"


def pool_of(**spec):
    return read_pool(
        {"metadata": {"namespace": "demo", "name": "main"}, "spec": {"models": ["m"], **spec}},
        "http://[::1]:9/v1/",
    )


def test_an_endpoint_is_ejected_after_failures_in_a_row_and_probed_by_one_call_at_a_time():
    router = Router(["a", "b"])
    for _ in range(FAILURES):
        assert router.order(0.0) == ["a", "b"]
        router.failed("a", 0.0)
    assert router.order(1.0) == ["b", "a"]
    assert router.ejected(1.0) == ["a"]
    assert router.order(5.0) == ["a", "b"]
    assert router.order(5.0) == ["b", "a"]  # one probes
    router.failed("a", 5.0)
    assert router.order(14.0) == ["b", "a"]  # longer this time
    assert router.order(15.0) == ["a", "b"]
    router.succeeded("a")
    assert router.order(15.0) == router.order(15.0) == ["a", "b"]


def test_a_probe_that_came_to_nothing_leaves_the_place_to_the_next():
    router = Router(["a", "b"])
    for _ in range(FAILURES):
        router.failed("a", 0.0)
    assert router.order(6.0) == ["a", "b"]
    router.unused(["a", "b"])
    assert router.order(6.0) == ["a", "b"]


def test_all_ejected_are_asked_all_the_same_and_who_wants_a_pause_gets_it():
    router = Router(["a", "b"])
    router.failed("a", 0.0, retry_after=30.0)
    router.failed("b", 0.0, retry_after=20.0)
    assert router.order(1.0) == ["b", "a"]
    router.update(["a", "c"])
    assert router.order(1.0) == ["c", "a"]


def test_retries_are_paid_from_a_budget_that_calls_fill():
    router = Router(["a", "b"])
    while router.may_retry():
        pass
    for _ in range(5):
        router.order(0.0)
    assert router.may_retry()
    assert not router.may_retry()


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "https://user:pass@api.example.com/v1",
        "https://10.0.0.1\\@api.example.com/v1",
        "http://127.0.0.1@api.example.com/v1",
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://api.example.com/v1#x",
        "https://api.example.com/a b",
        "https://",
        "",
    ],
)
def test_urls_that_are_not_https_or_loopback_are_refused(url):
    with pytest.raises(PreconditionError):
        pool_of(endpoints=[{"name": "a", "url": url}])


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        (f"{URL}/", f"{URL}/x"),
        (f"{URL}?api-version=1", f"{URL}/x?api-version=1"),
        ("http://127.0.0.1:80/v1", "http://127.0.0.1/v1/x"),
        ("http://[::1]:8080", "http://[::1]:8080/x"),
    ],
)
def test_an_operation_is_below_the_url(url, asked):
    (endpoint,) = pool_of(endpoints=[{"name": "a", "url": url}]).endpoints.values()
    assert endpoint.url("/x") == asked


@pytest.mark.parametrize(
    "spec",
    [
        {"models": []},
        {"endpoint": URL, "endpoints": [{"name": "a", "url": URL}]},
        {"endpoints": [{"name": "a", "url": URL}, {"name": "a", "url": URL}]},
        {"provider": "other"},
        {
            "endpoints": [
                {
                    "name": "a",
                    "url": URL,
                    "credential": {"secretRef": {"name": "k", "key": "t"}, "header": "Host"},
                }
            ]
        },
        {"budgets": [{"per": "pool", "tokens": 0}]},
        {"budgets": [{"per": "pool", "tokens": 1, "window": "soon"}]},
        {
            "budgets": [
                {"per": "pool", "tokens": 1, "window": "60m"},
                {"per": "pool", "tokens": 2, "window": "1h"},
            ]
        },
        {"onStoreDown": "perhaps"},
    ],
)
def test_pools_that_make_no_sense_cannot_be_used(spec):
    with pytest.raises(PreconditionError, match="ModelPool demo/main cannot be used"):
        pool_of(**spec)


def test_windows_are_durations_and_the_stand_in_is_for_pools_without_endpoint():
    assert [span(each) for each in ("", "30s", "1h30m", "24h")] == [0, 30, 5400, 86400]
    (endpoint,) = pool_of().endpoints.values()
    assert endpoint.url("/x") == "http://[::1]:9/v1/x"


EVENTS = st.lists(
    st.sampled_from(
        [b"data: a\n\n", b"data: b\r\n\r\n", b": c\n\n", b"event: e\ndata: d\n\n", b"data: f\r\r"]
    )
)


@given(EVENTS, st.binary(max_size=5), st.lists(st.integers(1, 7)))
def test_wherever_a_stream_is_cut_its_bytes_stay_and_events_are_whole(events, rest, sizes):
    stream = b"".join(events) + rest.replace(b"\n", b"").replace(b"\r", b"")
    cutter, found, at = Cutter(1000), [], 0
    for size in [*sizes, len(stream)]:
        found += cutter.push(stream[at : at + size])
        at += size
    assert b"".join(found) + cutter.rest() == stream
    assert all(each.endswith((b"\n", b"\r")) for each in found)


def test_the_data_of_an_event_is_its_lines_together():
    assert data_of(b"data: a\n\n") == b"a"
    assert data_of(b"data:a\r\n\r\n") == b"a"
    assert data_of(b"event: x\ndata: a\ndata: b\n\n") == b"a\nb"
    assert data_of(b": comment\n\n") == b""
    with pytest.raises(ValueError, match="too large"):
        Cutter(3).push(b"data")


def test_without_usage_what_was_seen_is_the_estimate():
    meter = Meter(400)
    for text in ("", "x" * 40, "y" * 80):
        meter.event(json.dumps({"text": text}).encode())
    assert meter.result() == Tokens(100, 30, estimated=True)
    meter = Meter(400)
    meter.whole(b"x" * 41)
    assert meter.result() == Tokens(100, 11, estimated=True)
    assert Meter(400).result(answered=False) == Tokens(0, 0)


@pytest.mark.parametrize(
    "usage", ['{"prompt_tokens":-1}', '{"prompt_tokens":1e30}', '"many"', "[]", '{"prompt_tokens":"1"}']
)
def test_a_usage_that_is_none_is_an_estimate(usage):
    meter = Meter(4)
    meter.whole(b'{"usage":%s}' % usage.encode())
    assert meter.result().estimated


def test_what_is_reserved_is_the_request_and_the_answer_that_it_allows():
    pool = pool_of()

    def reserved(operation=Operation.CHAT, **fields):
        body = json.dumps(fields).encode()
        return read(operation, body, pool, 1000).tokens - -(-len(body) // 4)

    assert reserved() == 1000
    assert reserved(max_tokens=7) == 7
    assert reserved(max_completion_tokens=7, n=3) == 21
    assert reserved(max_tokens=-5) == 1000
    assert reserved(Operation.RESPONSES, max_output_tokens=9) == 9
    assert reserved(Operation.EMBEDDINGS) == 0
