"""The report: what a run became, left in a file for whoever owns the process."""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec

from libs import files
from libs.exits import intent

from . import VERSION
from .manifest import readable
from .run import Run, Usage
from .statuses import exit_code
from .text import clean

MAX_BYTES = 4096
"""What Kubernetes keeps of a termination message."""


@dataclass(frozen=True, slots=True)
class Report:
    """The file's fields, as they are named there. It holds no prompt and no answer."""

    run_id: str
    status: str
    """A word of `statuses`; of a newer minor version perhaps one that is not known here."""
    exit_code: int
    intent: str = ""
    agent: str = ""
    mode: str = ""
    error: str = ""
    """Of a run that failed, for people; cut so that the file keeps to its bound."""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    has_result: bool = False
    contract_version: str = VERSION

    @classmethod
    def of(cls, run: Run, *, agent: str, mode: str, ended_at: datetime) -> Report:
        """Of a run that has ended. ValueError if it has not."""
        if run.status is None or run.took is None:
            raise ValueError(f"run {run.id} has not ended")
        code = exit_code(run.status)
        return cls(
            run_id=run.id,
            status=run.status,
            exit_code=code,
            intent=intent(code),
            agent=agent,
            mode=mode,
            error=run.error,
            usage=run.usage,
            duration_ms=round(run.took.total_seconds() * 1000),
            started_at=ended_at - run.took,
            ended_at=ended_at,
            has_result=bool(run.result),
        )

    def encoded(self) -> bytes:
        """JSON of at most 4096 bytes. ValueError if even without its error's text it has more."""
        whole = replace(self, error=clean(self.error))
        data = msgspec.json.encode(whole)
        if (over := len(data) - MAX_BYTES) > 0:  # a character is at least a byte
            data = msgspec.json.encode(replace(whole, error=whole.error[: max(0, len(whole.error) - over)]))
        if len(data) > MAX_BYTES:
            raise ValueError(f"a report of {len(data)} bytes; at most {MAX_BYTES} are kept")
        return data

    def write(self, path: Path) -> None:
        """Leaves it there, whole or not at all where the folder lets us. OSError if it cannot be written: no
        reason for another exit code.

        /dev/termination-log is a mount of its own, which cannot be replaced; a link or a device must not be.
        """
        data = self.encoded()
        if _replaceable(path):
            with suppress(OSError):
                files.replace(path, data)
                return
        path.write_bytes(data)


def parse(text: str | bytes) -> Report | None:
    """What a process left; None if that is no report, or one of another major version."""
    try:
        version = msgspec.json.decode(text, type=_Version).contract_version
        return msgspec.json.decode(text, type=Report) if readable(version) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # the last: nested too deeply
        return None


class _Version(msgspec.Struct):
    """What a text has to say before the rest of it is read."""

    contract_version: str


def _replaceable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and not path.is_mount()
    except FileNotFoundError:
        return True
