"""What coordination is told: the rules of a fleet's queue, and whose work comes back at once.

Only the fields that a fleet declares are ever named in ConfigureQueue: how often an item is tried, who may
use the queue, and, once nobody works on it, its shards. Absent fields keep their value there, so what people
set stays theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2

from .key import Key
from .plan import Queue, Shards

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_MOST_AGENTS = 64  # of a queue, as coordination has it


@dataclass(frozen=True, slots=True)
class Rules:
    """How a queue should be."""

    max_attempts: int
    agents: tuple[str, ...]
    shards: int | None = None
    """None: as many as it has."""


class Coordination(Protocol):
    """What we need of coordination."""

    async def configure(self, queue: str, rules: Rules) -> tuple[bool, Shards]:
        """Makes the queue (namespace/name) so. Whether that changed anything, and how it is divided now."""

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """What this pod holds may be claimed again."""


class Remote:
    """Coordination, over the wire."""

    def __init__(self, stub: CoordinationServiceAsyncStub) -> None:
        self._stub = stub

    async def configure(self, queue: str, rules: Rules) -> tuple[bool, Shards]:
        """As `Coordination` has it."""
        found = await self._stub.GetQueues(pb.GetQueuesRequest(queues=[queue]))
        for there in found.queues:
            shards = _shards(there)
            is_divided_so = rules.shards in (None, shards.count)
            said = there.policy.max_attempts, tuple(sorted(there.policy.agents.names))
            if is_divided_so and said == (rules.max_attempts, rules.agents):
                return False, shards
        policy = work_pb2.QueuePolicy(
            max_attempts=rules.max_attempts,
            agents=work_pb2.AgentList(names=rules.agents),
            shards=None if rules.shards is None else work_pb2.Sharding(count=rules.shards),
        )
        answer = await self._stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue, policy=policy))
        return True, _shards(answer.queue)

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """As `Coordination` has it."""
        await self._stub.ReleaseWorker(
            pb.ReleaseWorkerRequest(namespace=namespace, pod_uid=pod_uid, reason=reason)
        )


@dataclass(frozen=True, slots=True)
class _Heard:
    """What coordination's last answer means for a fleet."""

    trouble: str = ""
    shards: Shards | None = None


class Queues:
    """The queues that fleets name. Fleets may share one: then all may use it, and the most attempts count.
    One that is to be divided is not shared: of several fleets the oldest has it, and the others are told."""

    def __init__(self, wake: Callable[[str, str], None], trouble: Callable[[Key], None]) -> None:
        """`wake` is called with namespace and name of a queue whose rules are to be looked at, `trouble` with
        a fleet of which `trouble` or `shards` says something else than before."""
        self._wake = wake
        self._tell = trouble
        self._by_fleet: dict[Key, Queue] = {}
        self._fleets: defaultdict[tuple[str, str], dict[Key, str]] = defaultdict(dict)  # and since when
        self._heard: dict[Key, _Heard] = {}

    def set(self, fleet: Key, queue: Queue | None, born: str = "") -> None:
        """The fleet, which was made at that time, needs this queue; None: it is gone, or is no fleet."""
        before = self._by_fleet.get(fleet)
        if before is not None and (queue is None or before.name != queue.name):
            self._heard.pop(fleet, None)
            del self._fleets[fleet.namespace, before.name][fleet]
        if queue is None:
            self._by_fleet.pop(fleet, None)
        else:
            self._by_fleet[fleet] = queue
            self._fleets[fleet.namespace, queue.name][fleet] = born
        for changed in {before, queue} - {None} if before != queue else set():
            assert changed is not None
            self._wake(fleet.namespace, changed.name)

    def rules(self, namespace: str, name: str) -> Rules | None:
        """How a queue should be; None if no fleet names it, and then it stays as it is."""
        users = self._users(namespace, name)
        if not users:
            return None
        agents = sorted({agent for queue in users.values() for agent in queue.agents})
        wanted = {queue.shards if queue.reshards else None for queue in users.values()}
        return Rules(
            max(queue.max_attempts for queue in users.values()),
            tuple(agents[:_MOST_AGENTS]),
            wanted.pop() if len(wanted) == 1 else None,  # as long as somebody works on it, as it is
        )

    def settle(self, namespace: str, name: str, refusal: str, shards: Shards | None = None) -> None:
        """Coordination was asked to make the queue so. Now it is divided like that; `refusal`: coordination's
        words if it does not want to."""
        rules, users = self.rules(namespace, name), self._users(namespace, name)
        for fleet, queue in self._named(namespace, name).items():
            left_out = [agent for agent in queue.agents if rules and agent not in rules.agents]
            full = f"it has its {_MOST_AGENTS} agents without {', '.join(left_out)}" if left_out else ""
            owner = next(iter(users)).name
            other = "" if fleet in users else f"fleet {owner} has it, and shards are not shared"
            if why := refusal or other or full:
                why = f"queue {name}: {why}"
            before = self._heard.get(fleet, _Heard())
            now = _Heard(why, shards or before.shards)
            if other and queue.shards:
                now = _Heard(why)  # these are no shards of its own
            self._heard[fleet] = now
            counts = queue.shards or any(each.shards and each.shards.count for each in (before, now))
            if now.trouble != before.trouble or (now.shards != before.shards and counts):
                self._tell(fleet)

    def trouble(self, fleet: Key) -> str:
        """Why the fleet cannot use its queue as it says, as far as is known; empty if it can."""
        return self._heard.get(fleet, _Heard()).trouble

    def shards(self, fleet: Key, name: str) -> Shards | None:
        """How the queue of this name is divided, if it is the fleet's and coordination has said so."""
        queue = self._by_fleet.get(fleet)
        return self._heard.get(fleet, _Heard()).shards if queue and queue.name == name else None

    def _users(self, namespace: str, name: str) -> dict[Key, Queue]:
        """The fleets that may use the queue: all that name it, or the oldest."""
        named = self._named(namespace, name)
        if len(named) > 1 and any(queue.shards for queue in named.values()):
            born = self._fleets[namespace, name]
            oldest = min(named, key=lambda fleet: (born[fleet], fleet.name))
            return {oldest: named[oldest]}
        return named

    def _named(self, namespace: str, name: str) -> dict[Key, Queue]:
        return {fleet: self._by_fleet[fleet] for fleet in self._fleets.get((namespace, name), ())}


def _shards(queue: work_pb2.Queue) -> Shards:
    return Shards(queue.policy.shards.count, queue.policy.shards.epoch)
