"""What happens in a namespace, heard by watches: every change counts, also those that are soon undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from libs.cluster import Cluster, Object, controller_of, key_of
from libs.cluster.informer import Informer
from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    REPLICA_SET,
    Kind,
)
from libs.cluster.kubernetes import connect

KINDS = (AGENT, AGENT_FLEET, DEPLOYMENT, REPLICA_SET, JOB, CRON_JOB, POD, CONFIG_MAP)


class Watching:
    """A namespace, by kind. Made by `watching`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.informers = {kind: Informer(cluster, kind, namespace, whole=True) for kind in KINDS}
        self.most_running: dict[str, int] = {}
        """Of each agent: how many of its pods ever ran at one moment."""
        self._moved = anyio.Event()
        for informer in self.informers.values():
            informer.subscribe(self._seen)

    def get(self, kind: Kind, name: str) -> Object | None:
        """As last heard of."""
        return self.informers[kind].get(self.namespace, name)

    def pods(self, agent: str) -> list[Object]:
        """Those of an agent that are not about to end."""
        return [pod for pod in self._pods(agent) if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, agent: str) -> list[Object]:
        """Those of them that are ready."""
        return [pod for pod in self.pods(agent) if _condition(pod, "Ready") == "True"]

    async def until(self, true: Callable[[], object], seconds: float = 90) -> None:
        """Returns when it is so, looking again at every change. TimeoutError."""
        with anyio.fail_after(seconds):
            while not true():
                await self._moved.wait()

    def orphans(self) -> list[str]:
        """What names an owner of this namespace that is not there."""
        things = [thing for informer in self.informers.values() for thing in informer.items()]
        alive = {thing["metadata"]["uid"] for thing in things}
        return [
            f"{thing['kind']}/{key_of(thing)[1]}"
            for thing in things
            for owner in thing["metadata"].get("ownerReferences", ())
            if owner["uid"] not in alive and owner["kind"] != NAMESPACE.name
        ]

    def owned(self) -> list[str]:
        """All there is that somebody owns."""
        things = [thing for informer in self.informers.values() for thing in informer.items()]
        return [f"{thing['kind']}/{key_of(thing)[1]}" for thing in things if controller_of(thing)]

    def _pods(self, agent: str) -> list[Object]:
        pods = self.informers[POD].items()
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("agentctl.dev/agent") == agent]

    def _seen(self, old: Object | None, new: Object | None) -> None:
        self._moved.set()
        self._moved = anyio.Event()
        thing = new or old or {}
        agent = thing["metadata"].get("labels", {}).get("agentctl.dev/agent", "")
        running = sum(map(_runs, self._pods(agent)))
        self.most_running[agent] = max(self.most_running.get(agent, 0), running)


def accepted(thing: Object | None) -> tuple[str, str]:
    """Status and reason of the condition, for the generation that there is; of an older one: ("", "")."""
    for each in ((thing or {}).get("status") or {}).get("conditions", ()):
        if (
            each["type"] == "Accepted"
            and each["observedGeneration"] == (thing or {})["metadata"]["generation"]
        ):
            return each["status"], each["reason"]
    return "", ""


@asynccontextmanager
async def watching(kubeconfig: Path, namespace: str) -> AsyncIterator[Watching]:
    """Heard from the beginning of the block on."""
    async with connect(kubeconfig) as cluster, anyio.create_task_group() as group:
        watched = Watching(cluster, namespace)
        for informer in watched.informers.values():
            group.start_soon(informer.run)
        for informer in watched.informers.values():
            await informer.synced()
        yield watched
        group.cancel_scope.cancel()


def _runs(pod: Object) -> bool:
    """Whether a process of it may be there: from its start until its node says that it ended."""
    statuses: Sequence[Object] = pod.get("status", {}).get("containerStatuses", ())
    return any("running" in status.get("state", {}) for status in statuses)


def _condition(thing: Object, kind: str) -> str:
    conditions = thing.get("status", {}).get("conditions", ())
    return next((each["status"] for each in conditions if each["type"] == kind), "")
