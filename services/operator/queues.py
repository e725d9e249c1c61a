"""What coordination is told: the rules of a fleet's queue, and whose work comes back at once.

Only the fields that a fleet declares are ever named in ConfigureQueue: how often an item is tried, who may
use the queue, and, once nobody works on it, its shards. Absent fields keep their value there, so what people
set stays theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2

from .key import Key
from .plan import Queue, Shards

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_MOST_AGENTS = 64  # of a queue, as coordination has it
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """How a queue should be."""

    max_attempts: int
    agents: tuple[str, ...]
    shards: int | None = None
    """None: as many as it has."""
    epoch: int = 0
    """Of the division that goes for these shards. If it is another one by now, it stays."""


class Coordination(Protocol):
    """What we need of coordination."""

    async def configure(self, queue: str, rules: Rules, check: Callable[[], None]) -> tuple[bool, Shards]:
        """Makes the queue (namespace/name) so. Whether that changed anything, and how it is divided now.
        `check` is called before each change, and raises to forbid it."""

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """What this pod holds may be claimed again."""


class Remote:
    """Coordination, over the wire."""

    def __init__(self, stub: CoordinationServiceAsyncStub) -> None:
        self._stub = stub

    async def configure(self, queue: str, rules: Rules, check: Callable[[], None]) -> tuple[bool, Shards]:
        """As `Coordination` has it. QueueInUseError while items of a queue that is to be divided are held,
        StaleShardError if somebody else was faster."""
        found = await self._stub.GetQueues(pb.GetQueuesRequest(queues=[queue]))
        there = found.queues[0] if found.queues else work_pb2.Queue()
        changed = False
        said = there.policy.max_attempts, tuple(sorted(there.policy.agents.names))
        if not found.queues or said != (rules.max_attempts, rules.agents):
            agents = work_pb2.AgentList(names=rules.agents)
            policy = work_pb2.QueuePolicy(max_attempts=rules.max_attempts, agents=agents)
            there, changed = await self._change(queue, policy, check), True
        shards = _shards(there)
        if rules.shards not in (None, shards.count) and rules.epoch == shards.epoch:
            division = work_pb2.Sharding(count=rules.shards, epoch=rules.epoch)
            there, changed = await self._change(queue, work_pb2.QueuePolicy(shards=division), check), True
        return changed, _shards(there)

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """As `Coordination` has it."""
        await self._stub.ReleaseWorker(
            pb.ReleaseWorkerRequest(namespace=namespace, pod_uid=pod_uid, reason=reason)
        )

    async def _change(
        self, queue: str, policy: work_pb2.QueuePolicy, check: Callable[[], None]
    ) -> work_pb2.Queue:
        check()
        answer = await self._stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue, policy=policy))
        return answer.queue


@dataclass(frozen=True, slots=True)
class Heard:
    """What coordination's last answer means for a fleet."""

    trouble: str = ""
    """Why it cannot use its queue as it says."""
    shards: Shards | None = None
    """How its queue is divided. None: it has not been said yet, or is another fleet's matter."""
    owner: str = ""
    """The fleet that has the queue, if that is another."""
    wait: str = ""
    """Why its queue is not divided as it wants yet."""


class Queues:
    """The queues that fleets name. Fleets may share one: then all may use it, and the most attempts count.
    One that is to be divided is not shared: the oldest fleet has it; if that wants no shards, all that want
    none. The others are told."""

    def __init__(self, wake: Callable[[str, str], None], trouble: Callable[[Key], None]) -> None:
        """`wake` is called with namespace and name of a queue whose rules are to be looked at, `trouble` with
        a fleet of which `heard` says something else than before."""
        self._wake = wake
        self._tell = trouble
        self._by_fleet: dict[Key, Queue] = {}
        self._fleets: defaultdict[tuple[str, str], dict[Key, str]] = defaultdict(dict)  # and since when
        self._at_work: dict[Key, frozenset[str]] = {}
        self._workers: defaultdict[tuple[str, str], set[Key]] = defaultdict(set)  # fleets, by queue
        self._heard: dict[Key, Heard] = {}

    def forget(self) -> None:
        """Others may have led since, so nothing is known any more."""
        for known in (self._by_fleet, self._fleets, self._at_work, self._workers, self._heard):
            known.clear()

    def set(
        self, fleet: Key, queue: Queue | None, born: str = "", at_work: frozenset[str] = frozenset()
    ) -> None:
        """The fleet, which was made at that time, needs this queue; None: it is gone, or is no fleet. On the
        queues `at_work` its agents are at work, or may soon be."""
        namespace, before = fleet.namespace, self._by_fleet.get(fleet)
        changed = {each.name for each in (before, queue) if each} if before != queue else set()
        worked = self._at_work.pop(fleet, frozenset())
        rules = {name: self.rules(namespace, name) for name in worked ^ at_work}
        if before is not None and (queue is None or before.name != queue.name):
            self._heard.pop(fleet, None)
            del self._fleets[namespace, before.name][fleet]
        if queue is None:
            self._by_fleet.pop(fleet, None)
        else:
            self._by_fleet[fleet] = queue
            self._fleets[namespace, queue.name][fleet] = born
        if at_work:
            self._at_work[fleet] = at_work
        for name in worked - at_work:
            self._workers[namespace, name].discard(fleet)
        for name in at_work - worked:
            self._workers[namespace, name].add(fleet)
        for name in changed | {name for name in rules if rules[name] != self.rules(namespace, name)}:
            self._wake(namespace, name)

    def rules(self, namespace: str, name: str) -> Rules | None:
        """How a queue should be; None if no fleet names it, and then it stays as it is."""
        users, workers = self._users(namespace, name), self._workers.get((namespace, name), ())
        if not users:
            return None
        named = self._named(namespace, name)
        # Those who have to let go may still say what they have done.
        may = [queue for fleet, queue in named.items() if fleet in users or fleet in workers]
        agents = sorted({agent for queue in may for agent in queue.agents})
        wanted = {queue.shards if queue.reshards else None for queue in users.values()}
        seen = next((heard.shards for fleet in users if (heard := self._of(fleet)).shards), None)
        return Rules(
            max(queue.max_attempts for queue in users.values()),
            tuple(agents[:_MOST_AGENTS]),
            wanted.pop() if len(wanted) == 1 and not workers else None,
            seen.epoch if seen else 0,
        )

    def settle(
        self, namespace: str, name: str, refusal: str, shards: Shards | None = None, wait: str = ""
    ) -> None:
        """Coordination was asked to make the queue so. Now it is divided like that; `refusal`: coordination's
        words if it does not want to, `wait`: if it does not want to divide it now."""
        rules, users = self.rules(namespace, name), self._users(namespace, name)
        workers = sorted(fleet.name for fleet in self._workers.get((namespace, name), ()))
        if workers:
            wait = f"agents of fleet {', '.join(workers[:_SHOWN])} are still at work on it"
        for fleet, queue in self._named(namespace, name).items():
            left_out = [agent for agent in queue.agents if rules and agent not in rules.agents]
            full = f"it has its {_MOST_AGENTS} agents without {', '.join(left_out)}" if left_out else ""
            owner = "" if fleet in users else next(iter(users)).name
            other = f"fleet {owner} has it, and shards are not shared" if owner else ""
            if why := refusal or other or full:
                why = f"queue {name}: {why}"
            before = self._of(fleet)
            divided = None if owner else shards or before.shards
            now = self._heard[fleet] = Heard(why, divided, owner, wait if queue.reshards else "")
            counts = queue.shards or any(each.shards and each.shards.count for each in (before, now))
            if now != (before if counts else replace(before, shards=divided)):
                self._tell(fleet)

    def is_divided(self, namespace: str, name: str) -> bool:
        """Whether the queue has shards, or is to have some."""
        named = self._named(namespace, name)
        return any(
            queue.shards or ((shards := self._of(fleet).shards) and shards.count)
            for fleet, queue in named.items()
        )

    def trouble(self, fleet: Key) -> str:
        """Why the fleet cannot use its queue as it says, as far as is known; empty if it can."""
        return self._of(fleet).trouble

    def heard(self, fleet: Key, name: str) -> Heard:
        """What is known of the queue of this name, if it is the fleet's."""
        queue = self._by_fleet.get(fleet)
        return self._of(fleet) if queue and queue.name == name else Heard()

    def _of(self, fleet: Key) -> Heard:
        return self._heard.get(fleet, Heard())

    def _users(self, namespace: str, name: str) -> dict[Key, Queue]:
        """The fleets that may use the queue, the oldest first."""
        born, named = self._fleets.get((namespace, name), {}), self._named(namespace, name)
        users = {fleet: named[fleet] for fleet in sorted(named, key=lambda fleet: (born[fleet], fleet.name))}
        oldest = next(iter(users), None)
        if oldest and users[oldest].shards:
            return {oldest: users[oldest]}
        return {fleet: queue for fleet, queue in users.items() if not queue.shards}

    def _named(self, namespace: str, name: str) -> dict[Key, Queue]:
        return {fleet: self._by_fleet[fleet] for fleet in self._fleets.get((namespace, name), ())}


def _shards(queue: work_pb2.Queue) -> Shards:
    return Shards(queue.policy.shards.count, queue.policy.shards.epoch)
