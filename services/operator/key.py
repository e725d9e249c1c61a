"""What an object is called."""

from __future__ import annotations

from dataclasses import dataclass

from libs.cluster.kinds import Kind


@dataclass(frozen=True, slots=True)
class Key:
    """An object to be looked at."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"
