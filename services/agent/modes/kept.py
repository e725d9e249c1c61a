"""Finished steps of a workflow as files, so that a process that starts anew does not do them again."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from libs import files
from libs.contract.run import Usage


class Finished(msgspec.Struct, frozen=True):
    """What there is of a step: its result, and what the run had used when it was kept."""

    text: str
    usage: Usage


class Kept:
    """The finished steps of one run of one document: another run, or another document, has its own."""

    def __init__(self, folder: Path, run_id: str, digest: str) -> None:
        self._folder = folder / sha256(f"{run_id}\0{digest}".encode()).hexdigest()[:32]

    def read(self) -> dict[str, Finished]:
        """By name. What cannot be read, or is not what `write` writes, does not count. OSError if the folder
        cannot be made."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {}
        for path in self._folder.glob("*.json"):
            with suppress(OSError, msgspec.DecodeError):
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Finished)
        return found

    def write(self, name: str, finished: Finished) -> None:
        """Whole or not at all, also if the machine stops. OSError."""
        content = msgspec.json.encode(finished)
        files.replace(self._folder / f"{name}.json", content, mode=0o600, lasts=True)
