"""A cache of all objects of a kind that follows the home: list, then watch, without end.

A watch that breaks goes on from the last revision; if that is too old, the informer lists again and tells
only the differences, among them what was deleted meanwhile. Bookmarks move the revision, so that a quiet
watch seldom has to.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from libs.errors import MeshError

from . import Change, Cluster, ExpiredError, Object, key_of
from .kinds import Kind

Subscriber = Callable[[Object | None, Object | None], None]
"""Called with (old, new): None and new if it came, old and None if it went. What it raises in `run` is
logged, and everybody hears of all the rest."""

P = ParamSpec("P")
T = TypeVar("T")

_BASE = 0.2
_CAP = 30.0

_log = logging.getLogger(__name__)


class Informer:
    """What `cluster` has of a kind: of one namespace, or of all (""), that matches the label selector; or the
    one thing that has this `name`.

    The objects that it gives and tells are the cache's own: nobody changes them. Without `whole` they have
    no metadata.managedFields, which is often more than all the rest of an object. `keep` says what else of an
    object is kept: its metadata at least.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str = "",
        labels: str = "",
        *,
        name: str = "",
        whole: bool = False,
        keep: Callable[[Object], Object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.kind = kind
        self._cluster = cluster
        self._namespace = namespace
        self._labels = labels
        self._name = name
        self._whole = whole
        self._keep = keep
        self._clock = clock
        self._sleep = sleep
        self._objects: dict[tuple[str, str], Object] = {}
        self._subscribers: list[Subscriber] = []
        self._revision = ""
        self._heard_at = float("-inf")
        self._synced = asyncio.Event()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls it for each object that is there, now, and for each change from now on, in order."""
        for thing in self.items():
            subscriber(None, thing)
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Follows for ever. The home's refusals and failures are logged and tried again, with backoff."""
        failures = 0
        while True:
            began = self._clock()
            try:
                if not self._revision:
                    await self._relist()
                before = self._heard_at
                watched = self._cluster.watch(
                    self.kind, self._namespace, self._labels, since=self._revision, name=self._name
                )
                async for change in watched:
                    failures = 0
                    await self._take(change)
                if self._heard_at > before:
                    continue  # they end all the time
            except ExpiredError:
                self._revision = ""
            except MeshError as error:
                _log.warning("watch of %s: %s", self.kind.resource, error, extra={"reason": error.reason})
            if self._clock() - began > _CAP:
                failures = 0  # it was well for so long, though there was no news
            await self._sleep(min(_CAP, _BASE * 2 ** min(failures, 10)) * random.uniform(0.5, 1))
            failures += 1

    async def synced(self) -> None:
        """Until the first list is in the cache."""
        await self._synced.wait()

    def get(self, namespace: str, name: str) -> Object | None:
        """The object as last heard of; namespace "" for a kind without namespaces."""
        return self._objects.get((namespace, name))

    def items(self) -> list[Object]:
        """All of them, in no order that means something."""
        return list(self._objects.values())

    def age_seconds(self) -> float:
        """Since when nothing was heard of the home; infinite before the first list. Without news a Kubernetes
        speaks about once a minute, the local home not at all."""
        return self._clock() - self._heard_at

    async def _relist(self) -> None:
        listing = await self._cluster.list(self.kind, self._namespace, self._labels, name=self._name)
        now = {key_of(thing): thing for thing in listing.items}
        self._heard()
        self._revision = listing.revision
        for key in [key for key in self._objects if key not in now]:
            await self._remove(self._objects[key])
        for thing in now.values():
            await self._put(thing)
        self._synced.set()

    async def _take(self, change: Change) -> None:
        self._heard()
        self._revision = change.object["metadata"]["resourceVersion"]
        if change.type == "DELETED":
            await self._remove(change.object)
        elif change.type != "BOOKMARK":
            await self._put(change.object)

    def _heard(self) -> None:
        self._heard_at = self._clock()

    async def _put(self, thing: Object) -> None:
        if not self._whole:
            thing["metadata"].pop("managedFields", None)
        if self._keep is not None:
            kept = await self._apart(thing, self._keep, thing)
            if kept is None:
                return
            thing = kept
        key = key_of(thing)
        old = self._objects.get(key)
        if old is not None and old["metadata"]["uid"] != thing["metadata"]["uid"]:
            await self._remove(old)
            old = None
        if old is None or old["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
            self._objects[key] = thing
            await self._tell(old, thing)

    async def _remove(self, last: Object) -> None:
        if self._objects.pop(key_of(last), None) is not None:
            await self._tell(last, None)

    async def _tell(self, old: Object | None, new: Object | None) -> None:
        for subscriber in list(self._subscribers):  # who comes meanwhile is told by `subscribe`
            await self._apart(new or old or {}, subscriber, old, new)

    async def _apart(
        self, thing: Object, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What a function that was given to us makes of an object; its bug, which is logged, is no reason to
        follow no others."""

        async def asked() -> T:
            return call(*args, **kwargs)

        (outcome,) = await asyncio.gather(asked(), return_exceptions=True)
        if isinstance(outcome, BaseException):
            name = "/".join(key_of(thing))
            _log.error("%s %s: a bug in who follows it", self.kind.name, name, exc_info=outcome)
            return None
        return outcome
