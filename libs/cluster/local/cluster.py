"""`LocalCluster`: the port on one SQLite file."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from libs.cluster import Access, Bearer, Change, Cluster, Listing, Log, Object, Propagation
from libs.cluster.kinds import POD, Kind
from libs.errors import InvalidError

from . import logs
from .access import allowed
from .metadata import shown
from .selector import selector
from .store import Recorded, Store
from .tokens import Tokens
from .writer import Writer

_REVISION = re.compile(r"[0-9]{1,19}")
_AT_ONCE = 100  # objects of a list that are unpacked before others may run


class LocalCluster(Cluster):
    """One process's world of objects. Operations run on the event loop, each in well under a millisecond, and
    let others run before they begin."""

    def __init__(
        self, store: Store, tokens: Tokens, folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self._store, self._tokens, self._writer = store, tokens, Writer(store, clock)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """As the port says."""
        await asyncio.sleep(0)
        return self._store.read(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        """As the port says."""
        await asyncio.sleep(0)
        matches, items, revision = selector(labels), list[Object](), self._store.revision
        for index, item in enumerate(self._store.all(kind, namespace)):
            if matches(item["metadata"].get("labels", {})) and name in ("", item["metadata"]["name"]):
                items.append(item)
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # the rows are read: they are of that revision however long this takes
        return Listing(items, str(revision))

    async def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", *, since: str = "", name: str = ""
    ) -> AsyncIterator[Change]:
        """As the port says. Without `since` it begins with all that is there, as ADDED. It reads the log of
        changes, so a slow reader costs no memory; one that is 10,000 changes late gets an ExpiredError."""
        matches = selector(labels)
        if since in ("", "0"):
            listing = await self.list(kind, namespace, labels, name=name)
            since = listing.revision
            for item in listing.items:
                yield Change("ADDED", item)
        elif not _REVISION.fullmatch(since):
            raise InvalidError(violations={"since": f"no revision: {shown(since)!r}"})
        seen = int(since)
        while not self._store.closed:
            page = self._store.changes(kind, namespace, seen)
            for recorded in page:
                seen = recorded.revision
                is_meant = name in ("", recorded.object["metadata"]["name"])
                if is_meant and (change := _seen_through(recorded, matches)):
                    yield change
            if not page:
                # nothing of this kind up to now; and no change can come between this line and the wait
                seen = self._store.revision
                await self._store.news(kind)

    async def create(self, thing: Object) -> Object:
        """As the port says."""
        await asyncio.sleep(0)
        return self._writer.create(thing)

    async def apply(
        self, thing: Object, manager: str, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """As the port says."""
        await asyncio.sleep(0)
        return self._writer.apply(thing, manager, subresource, dry_run=dry_run)

    async def replace(self, thing: Object) -> Object:
        """As the port says. A status is replaced by `apply` alone."""
        await asyncio.sleep(0)
        return self._writer.replace(thing)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background"
    ) -> None:
        """As the port says. PreconditionError for the namespaces that every home has, and for the
        ServiceAccounts of the system namespace."""
        await asyncio.sleep(0)
        self._writer.delete(kind, namespace, name, uid, propagation)

    async def review_token(self, token: str, audience: str) -> Bearer:
        """As the port says."""
        return self._tokens.review(token, audience)

    async def review_access(self, bearer: Bearer, access: Access) -> bool:
        """As the table in `access` says."""
        return allowed(bearer, access)

    async def issue_token(self, namespace: str, account: str, audience: str, seconds: int) -> str:
        """As the port says."""
        return self._tokens.issue(namespace, account, audience, seconds)

    async def issue_pod_token(self, pod: Object, audience: str, seconds: int) -> str:
        """A token of a pod's ServiceAccount, bound to the pod: what a projected volume has. NotFoundError."""
        account = pod["spec"].get("serviceAccountName", "default")
        return self._tokens.issue(pod["metadata"]["namespace"], account, audience, seconds, pod)

    async def logs(self, log: Log) -> AsyncIterator[bytes]:
        """As the port says; it follows until the pod has ended or is gone."""
        pod = await self.get(POD, log.namespace, log.pod)
        uid, names = pod["metadata"]["uid"], [item["name"] for item in pod["spec"]["containers"]]
        container = log.container or names[0]
        if container not in names:
            raise InvalidError(violations={"container": f"one of {', '.join(names)}"})
        path = logs.path_of(self.folder, uid, container, previous=log.previous)

        def follow() -> bool:
            current = None if self._store.closed else self._store.by_uid(uid)
            ended = current is None or current.get("status", {}).get("phase") in ("Succeeded", "Failed")
            return log.follow and not log.previous and not ended

        async for piece in logs.read(path, tail=log.tail, follow=follow):
            yield piece

    async def version(self) -> str:
        """As the port says."""
        return "local"


def _seen_through(recorded: Recorded, matches: Callable[[dict[str, str]], bool]) -> Change | None:
    """A change as one sees it who sees only what matches: it may come into view, or leave it."""
    before = recorded.labels_before is not None and matches(recorded.labels_before)
    after = recorded.type != "DELETED" and matches(recorded.object["metadata"].get("labels", {}))
    if before:
        return Change("MODIFIED" if after else "DELETED", recorded.object)
    return Change("ADDED", recorded.object) if after else None
