"""What coordination is told: the rules of a fleet's queue, and whose work comes back at once.

Only the fields that a fleet declares are ever named in ConfigureQueue (how often an item is tried, and who
may use the queue); absent fields keep their value there, so what people set stays theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2

from .key import Key
from .plan import Queue

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_MOST_AGENTS = 64  # of a queue, as coordination has it


class Coordination(Protocol):
    """What we need of coordination."""

    async def configure(self, queue: str, max_attempts: int, agents: tuple[str, ...]) -> bool:
        """Makes the queue (namespace/name) so. Whether that changed anything."""

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """What this pod holds may be claimed again."""


class Remote:
    """Coordination, over the wire."""

    def __init__(self, stub: CoordinationServiceAsyncStub) -> None:
        self._stub = stub

    async def configure(self, queue: str, max_attempts: int, agents: tuple[str, ...]) -> bool:
        """As `Coordination` has it."""
        found = await self._stub.GetQueues(pb.GetQueuesRequest(queues=[queue]))
        for there in found.queues:
            if (there.policy.max_attempts, tuple(sorted(there.policy.agents.names))) == (
                max_attempts,
                agents,
            ):
                return False
        policy = work_pb2.QueuePolicy(max_attempts=max_attempts, agents=work_pb2.AgentList(names=agents))
        await self._stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue, policy=policy))
        return True

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        """As `Coordination` has it."""
        await self._stub.ReleaseWorker(
            pb.ReleaseWorkerRequest(namespace=namespace, pod_uid=pod_uid, reason=reason)
        )


class Queues:
    """The queues that fleets name. Fleets may share one: then all may use it, and the most attempts count."""

    def __init__(self, wake: Callable[[str, str], None], trouble: Callable[[Key], None]) -> None:
        """`wake` is called with namespace and name of a queue whose rules are to be looked at, `trouble` with
        a fleet of which the method says something else than before."""
        self._wake = wake
        self._tell = trouble
        self._by_fleet: dict[Key, Queue] = {}
        self._trouble: dict[Key, str] = {}

    def set(self, fleet: Key, queue: Queue | None) -> None:
        """The fleet needs this queue; None: it is gone, or is no fleet."""
        before = self._by_fleet.get(fleet)
        if queue is None:
            self._by_fleet.pop(fleet, None)
            self._trouble.pop(fleet, None)
        else:
            self._by_fleet[fleet] = queue
        for changed in {before, queue} - {None} if before != queue else set():
            assert changed is not None
            self._wake(fleet.namespace, changed.name)

    def rules(self, namespace: str, name: str) -> tuple[int, tuple[str, ...]] | None:
        """Attempts and agents of a queue; None if no fleet names it, and then it stays as it is."""
        named = self._fleets_of(namespace, name).values()
        if not named:
            return None
        agents = sorted({agent for queue in named for agent in queue.agents})
        return max(queue.max_attempts for queue in named), tuple(agents[:_MOST_AGENTS])

    def settle(self, namespace: str, name: str, refusal: str) -> None:
        """Coordination was asked to make the queue so; `refusal`: its words if it does not want to."""
        rules = self.rules(namespace, name)
        for fleet, queue in self._fleets_of(namespace, name).items():
            left_out = [agent for agent in queue.agents if rules and agent not in rules[1]]
            full = f"it has its {_MOST_AGENTS} agents without {', '.join(left_out)}" if left_out else ""
            if why := refusal or full:
                why = f"queue {name}: {why}"
            if why != self._trouble.get(fleet, ""):
                self._trouble[fleet] = why
                self._tell(fleet)

    def trouble(self, fleet: Key) -> str:
        """Why the fleet cannot use its queue as it says, as far as is known; empty if it can."""
        return self._trouble.get(fleet, "")

    def _fleets_of(self, namespace: str, name: str) -> dict[Key, Queue]:
        return {
            fleet: queue
            for fleet, queue in self._by_fleet.items()
            if fleet.namespace == namespace and queue.name == name
        }
