"""Ports for processes that have to be told which one to take."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port on which nobody listened a moment ago; none of those that connections are given (on Linux from
    32768 on), of which there are many here."""
    while True:
        port = random.randint(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
