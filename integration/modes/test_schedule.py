"""Mode schedule: a run of mode once at each time of the clock."""

from __future__ import annotations

from datetime import datetime

from ..machine import until
from ..scripted import Script
from .home import Home


def test_a_schedule_runs_at_the_full_minute(home: Home, scheduled: Script) -> None:
    """Applied when the plane began."""
    last = home.ended("scheduled", runs=None)
    assert (last["outcome"], last["exitCode"], last["reason"]) == ("Succeeded", 0, "completed"), last
    minute = datetime.fromisoformat(last["startTime"]).replace(second=0, microsecond=0)
    assert last["name"] == f"scheduled-{int(minute.timestamp()) // 60}"
    until(lambda: "A minute." in home.logs("scheduled"), "it does not answer")
    until(lambda: len(scheduled.asked) == home.status("scheduled")["runs"], "it does not run once a minute")
