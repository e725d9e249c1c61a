"""The machine as pods see it: what is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from libs.cluster.kinds import POD
from libs.cluster.local.cluster import LocalCluster

from .addresses import Addresses
from .inputs import Inputs

NODE = "local"
"""The name of the only node."""

ADDRESS = "127.0.0.1"
"""The node's own address."""

MANAGER = "agentctl-runner"
"""The field manager of what the runner writes."""

FINALIZER = "agentctl.dev/runner"
"""Keeps the object of a pod until its processes are gone."""

Clock = Callable[[], datetime]


@dataclass(frozen=True)
class Limits:
    """What the machine is spared. Tokens are looked at every `housekeeping` seconds, the sizes of logs every
    `log_seconds`: a process can write a gigabyte in one."""

    pods: int = 256
    log_bytes: int = 10 * 2**20
    log_seconds: float = 0.25
    housekeeping: float = 5.0
    stop: float = 60.0  # seconds that pods get at most when the runner itself stops


@dataclass(frozen=True)
class Host:
    """`commands` says what the first word of a command stands for; `environment` is all that a child gets
    beside its own variables; `prefix` are the words that make a child die with us."""

    cluster: LocalCluster
    inputs: Inputs
    folder: Path
    commands: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    clock: Clock
    prefix: Sequence[str] = ()
    limits: Limits = Limits()
    addresses: Addresses = field(default_factory=Addresses)

    def words(self, command: Sequence[str]) -> list[str]:
        """A command as it is to be started here."""
        return [*self.commands.get(command[0], command[:1]), *command[1:]]

    async def room(self) -> int:
        """How many more pods may be made now."""
        listing = await self.cluster.list(POD)
        ended = ("Succeeded", "Failed")
        active = sum(pod.get("status", {}).get("phase") not in ended for pod in listing.items)
        return max(0, self.limits.pods - active)

    def now(self) -> str:
        """The time as objects have it."""
        return stamp(self.clock())


def stamp(moment: datetime) -> str:
    """A time as objects have it: seconds, UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: str) -> datetime:
    """The time that an object has."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
