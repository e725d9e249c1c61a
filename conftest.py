"""What all tests share: the loop that we deploy on, and how hard hypothesis looks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from libs.testing.loop import BACKEND

# A busy machine is slow, and no test of ours is about that. What finds more with more says so itself.
settings.register_profile(
    "agentctl", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("agentctl")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return BACKEND
