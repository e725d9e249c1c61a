from __future__ import annotations

from datetime import timedelta

import pytest

from ..durations import duration, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("7d", 604_800), ("1.5h", 5400), ("0", 0)],
)
def test_duration_reads_what_people_write(text, seconds):
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "-5s", "5 s", "1w", "s", "1e9s", "99999999999d", "nan", "5s3"])
def test_duration_refuses_the_rest(text):
    with pytest.raises(ValueError, match=r"duration|hundred years"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.42, "0.4s"), (12.3, "12s"), (59.7, "1m"), (95, "1m35s"), (7260, "2h1m"), (90_000, "1d1h")],
)
def test_span_has_two_units_at_most(seconds, text):
    assert span(seconds) == text
