"""What the rules say of an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Operation = Mapping[str, Any]
"""One of a JSON Patch (RFC 6902): op, path, and value unless it removes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule has found."""

    rule: str
    """A word that stays, such as image-not-allowed."""
    field: str
    """Where, as spec.template.model.pool."""
    value: str
    """What is there, shortened; "" if it is absent or must not be repeated."""
    message: str
    """What is wrong with it."""
    mend: str
    """What to do about it."""

    def __str__(self) -> str:
        shown = f" {self.value!r}" if self.value else ""
        return f"{self.field}{shown}: {self.message}; {self.mend} ({self.rule})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an object may be declared, and all that is wrong with it."""

    denials: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()
    """What is legal but unwise."""
    patch: Sequence[Operation] = ()
    """What would be changed on the way in."""

    @property
    def allowed(self) -> bool:
        """Whether nothing is against it."""
        return not self.denials
