"""The state folder of the local plane: its objects, identities, logs, data, and where it listens."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ADMINISTRATOR = "administrator"


class StateError(Exception):
    """The folder is not as it has to be; the message says what to do."""


@dataclass(frozen=True)
class State:
    """Where things are in a state folder. Private to its owner: it holds keys."""

    folder: Path

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "plane.log"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def endpoints(self) -> Path:
        return self.folder / "endpoints.json"

    @property
    def ports(self) -> Path:
        return self.folder / "ports.json"

    def identity(self, name: str) -> Path:
        """The certificate folder of one process or person."""
        return self.folder / "identities" / name

    def prepare(self) -> None:
        """Makes the folder, for its owner only. Refuses one in which others could change or read keys.

        Root's lets others pass, but not look around: a PostgreSQL that root starts runs as another user.
        """
        if not self.folder.exists():
            self.folder.mkdir(mode=0o700, parents=True)
            if os.geteuid() == 0:
                self.folder.chmod(0o711)
        _refuse(self.folder, 0o022)
        for folder in (self.logs, self.objects, self.folder / "identities"):
            folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.logs, self.objects, self.folder / "identities", self.pki):
            if folder.exists():
                _refuse(folder, 0o077)

    def running(self) -> dict[str, str]:
        """What `agentctl up` wrote about the plane that runs here; empty if none does."""
        try:
            found = json.loads(self.endpoints.read_text())
            return {str(name): str(value) for name, value in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise StateError(f"{self.endpoints}: not what `agentctl up` writes: {error}") from error


def _refuse(folder: Path, forbidden: int) -> None:
    mode = folder.stat().st_mode & 0o777
    if mode & forbidden:
        raise StateError(
            f"{folder}: open to others (mode {mode:o}), and keys are in it; run: chmod 700 {folder}"
        )


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Replaces the file whole: no reader ever sees a half."""
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with open(descriptor, "w") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
    os.replace(scratch, path)
