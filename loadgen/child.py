"""A process of ours that is measured: started on free ports, ready before it is used, stopped at the end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 60
_STOP_SECONDS = 20
_POLL = 0.05


class ServerError(Exception):
    """The server is not there; the message ends with what it said."""


@contextmanager
def child(
    module: str, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module`, with what it says in `log`; stopped at the end, by force if need be."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we stop it
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_ready(process: subprocess.Popen[bytes], metrics_port: int, log: Path) -> None:
    """Returns once its plain port says ready. ServerError if it ends before, or takes a minute."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _is_ready(metrics_port):
            return
        time.sleep(_POLL)
    raise ServerError(f"it did not become ready; {end_of(log)}")


def end_of(log: Path) -> str:
    """The end of what it said, for people."""
    return f"the end of its log:\n{log.read_text(errors='replace')[-2000:]}"


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _is_ready(metrics_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
