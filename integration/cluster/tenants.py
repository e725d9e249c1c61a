"""A fleet that is scaled: its work, which waits at gates, and all that ever became of its size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.identity import Identity
from libs.work import Client, Work, connect

from .kubectl import SYSTEM, Kubectl
from .traces import Trace, traced
from .world import World, script, work, world

NAME = "crew"
_ENDED = (work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD)

T = TypeVar("T")


@dataclass(frozen=True)
class Tenant:
    """A namespace with a fleet of that name, each agent with one slot."""

    world: World
    identity: Identity
    trace: Trace

    @property
    def kubectl(self) -> Kubectl:
        return self.world.kubectl

    @property
    def namespace(self) -> str:
        return self.world.namespace

    # --- its size

    def has(self, replicas: int, seconds: float = 180) -> None:
        """Returns when so many are asked for, and are ready."""
        self.world.until(lambda: self.trace.is_at(replicas), seconds)

    def says(self, kind: str, status: str, reason: str) -> None:
        """Returns when the fleet has that condition."""

        def is_so() -> bool:
            conditions = self.world.get("agentfleet", NAME).get("status", {}).get("conditions", ())
            wanted = (kind, status, reason)
            return any((each["type"], each["status"], each["reason"]) == wanted for each in conditions)

        self.world.until(is_so)

    def change(self, **scaling: Any) -> None:
        """Of spec.scaling."""
        patch = json.dumps({"spec": {"scaling": scaling}})
        self.kubectl("patch", "agentfleet", NAME, "-n", self.namespace, "--type=merge", "-p", patch)

    # --- its work

    def begin(self, *gates: str) -> list[str]:
        """Ids of items that call the tool and wait there, each at the gate of its name."""
        return self.submit([Work(script(work(gate, wait=gate), {"say": "done"}).encode()) for gate in gates])

    def quick(self, *names: str, keyed: bool = False) -> list[str]:
        """Ids of items that call the tool once, with their name; `keyed`: that is the shard key, too."""
        scripts = {name: script(work(name), {"say": "done"}).encode() for name in names}
        return self.submit([Work(each, shard_key=name * keyed) for name, each in scripts.items()])

    def submit(self, works: Sequence[Work]) -> list[str]:
        async def do(client: Client) -> None:
            verdicts = await client.submit_all(f"{self.namespace}/{NAME}", works)
            assert not [each for each in verdicts if isinstance(each, Exception)]

        self._ask(do)
        return [each.id for each in works]

    def items(self, ids: Sequence[str]) -> list[work_pb2.Item]:
        """Where these stand."""

        async def do(client: Client) -> dict[str, work_pb2.Item]:
            found = dict[str, work_pb2.Item]()
            for at in range(0, len(ids), 100):
                request = pb.GetItemsRequest(item_ids=ids[at : at + 100])
                found |= {item.id: item for item in (await client.stub.GetItems(request)).items}
            return found

        found = self._ask(do)
        return [found[id] for id in ids]

    def succeeded(self, ids: Sequence[str], seconds: float = 120) -> list[work_pb2.Item]:
        """These, when all have come to a good end, each with its first attempt."""
        items = self.finished(ids, seconds)
        again = [(item.id, item.attempt, list(item.failures)) for item in items if item.attempt != 1]
        assert not again, again
        return items

    def finished(self, ids: Sequence[str], seconds: float = 120) -> list[work_pb2.Item]:
        """These, when all have come to a good end."""

        def ended() -> list[work_pb2.Item] | None:
            items = self.items(ids)
            return items if all(item.state in _ENDED for item in items) else None

        items = self.world.until(ended, seconds)
        failed = [str(item) for item in items if item.state != work_pb2.WORK_STATE_SUCCEEDED]
        assert not failed, failed
        return items

    def _ask(self, do: Callable[[Client], Awaitable[T]]) -> T:
        async def ask() -> T:
            # Each time anew: a forward ends with the pod that it leads to.
            with self.kubectl.forwarded("service/coordination", 7410, SYSTEM) as address:
                async with connect(address, self.identity) as client:
                    return await do(client)

        return asyncio.run(ask())


@contextmanager
def tenant(
    kubectl: Kubectl, namespace: str, folder: Path, workload: str = "deployment", **scaling: Any
) -> Iterator[Tenant]:
    """With the fleet, whose `scaling` is this; it goes after the block."""
    around = world(kubectl, namespace)
    path = f"spiffe://{around.authority.domain}/ns/{namespace}/user/tester"
    identity = around.authority.issue(path, folder / namespace)
    patient = {
        "name": "agent",
        "env": [{"name": "AGENT_TOOL_TIMEOUT", "value": "1h"}],
        "resources": {"requests": {"cpu": "10m"}},  # twenty of them fit a small node
    }
    fleet = around.fleet(NAME, 1, podTemplate={"spec": {"containers": [patient]}})
    fleet["spec"]["scaling"] = {"minReplicas": 0, "maxReplicas": 5, "cooldown": "5s", **scaling}
    with traced(kubectl, namespace, f"{workload}/{NAME}", f"agentctl.dev/agent={NAME}") as trace:
        kubectl.apply(fleet)
        try:
            yield Tenant(around, identity, trace)
        finally:
            kubectl("delete", "agentfleet", NAME, "-n", namespace, "--timeout=120s", seconds=130)
