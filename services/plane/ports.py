"""The ports of the local home: the same at every start, since agents that are to go on know them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from libs.state import write_json

LOOPBACK = "127.0.0.1"


class Ports:
    """A port for each name: the one that it had before while that is free, otherwise any."""

    def __init__(self, file: Path, coordination: int = 0) -> None:
        """`coordination`: its port, if that was asked for; 0: as for the others."""
        self._file = file
        self._ports = {"coordination": coordination} if coordination else {}
        self._before: dict[str, int] = {}
        if file.exists():
            try:
                self._before = {str(name): int(port) for name, port in json.loads(file.read_text()).items()}
            except (ValueError, AttributeError):  # then they are new, and agents start again
                self._before = {}

    def __getitem__(self, name: str) -> int:
        if name not in self._ports:
            before = self._before.get(name, 0)
            taken = set(self._ports.values())
            is_ours = before and before not in taken and _is_free(before)
            self._ports[name] = before if is_ours else _free(taken)
        return self._ports[name]

    def keep(self) -> None:
        """The next start gets the same."""
        write_json(self._file, self._ports)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            listener.bind((LOOPBACK, port))
        except (OSError, OverflowError):
            return False
    return True


def _free(taken: set[int]) -> int:
    while True:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, 0))
            port = int(listener.getsockname()[1])
        if port not in taken:
            return port
