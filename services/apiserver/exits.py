"""Waiting for agents' processes to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import anyio

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import POD

from .pods import Exit, Pod, exit_of, selector
from .verbs import Target


class Exits:
    """How the agents' processes in some pods ended."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = {pod.uid: pod for pod in pods}
        self._ended = {pod.uid: anyio.Event() for pod in pods}
        self._exits: dict[str, Exit] = {}

    async def of(self, pod: Pod) -> Exit | None:
        """Waits for it; None if the pod went and nobody said how its process ended."""
        await self._ended[pod.uid].wait()
        return self._exits.get(pod.uid)

    def only(self, uids: Collection[str]) -> None:
        """These are all the pods that there are now."""
        for uid in self._ended.keys() - uids:
            self._ended[uid].set()

    def seen(self, old: Object | None, new: Object | None) -> None:
        """A change of a pod, as an informer tells it."""
        thing = new or old or {}
        uid = thing["metadata"]["uid"]
        if (pod := self._pods.get(uid)) is None:
            return
        if ended := exit_of(pod, thing):
            self._exits.setdefault(uid, ended)
        if ended or new is None or (new.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._ended[uid].set()


@asynccontextmanager
async def following(
    cluster: Cluster, target: Target, pods: Sequence[Pod], ends_at: float
) -> AsyncIterator[Exits]:
    """Follows the target's pods while the block runs. It begins when they are listed, or at `ends_at`, on the
    loop's clock."""
    exits = Exits(pods)
    informer = Informer(cluster, POD, target.namespace, selector(target))
    async with anyio.create_task_group() as group:
        group.start_soon(informer.run)
        with anyio.CancelScope(deadline=ends_at):
            await informer.synced()
            informer.subscribe(exits.seen)
            exits.only({thing["metadata"]["uid"] for thing in informer.items()})
        yield exits
        group.cancel_scope.cancel()
