"""A way to cut a connection."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import psycopg


def sever(connection: psycopg.AsyncConnection[object]) -> None:
    """Cut the socket under a connection: whoever waits on it gets an OperationalError at once."""
    with (
        suppress(OSError, psycopg.OperationalError),
        socket.socket(fileno=os.dup(connection.fileno())) as twin,
    ):
        twin.shutdown(socket.SHUT_RDWR)
