from __future__ import annotations

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listened a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
