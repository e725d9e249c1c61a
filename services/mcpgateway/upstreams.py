"""The servers that are in use: one `Upstream` each, for as long as its set states it so."""

from __future__ import annotations

import asyncio
from functools import partial

from .credentials import Credentials
from .objects import Grant, Objects
from .upstream import Upstream
from .web import Web

_Key = tuple[str, str, str]


class Upstreams:
    """Makes them when they are needed."""

    def __init__(self, objects: Objects, web: Web, at_once: int) -> None:
        self._objects = objects
        self._web = web
        self._at_once = at_once
        self._made: dict[_Key, Upstream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        objects.changed = self._changed

    def of(self, grant: Grant) -> dict[str, Upstream]:
        """By name, in order."""
        return {
            name: self._one(grant.namespace, each.set_name, name, grant)
            for name, each in grant.servers.items()
        }

    def forget(self, session: str) -> None:
        """Whose session that was is gone."""
        for each in self._made.values():
            each.forget(session)

    async def close(self) -> None:
        """All of them."""
        await asyncio.gather(*(each.close() for each in self._made.values()), *self._closing)

    def _one(self, namespace: str, set_name: str, name: str, grant: Grant) -> Upstream:
        key, server = (namespace, set_name, name), grant.servers[name].server
        made = self._made.get(key)
        if made is None or made.server != server:
            if made is not None:
                self._drop(key)
            credentials = Credentials(namespace, server, partial(self._objects.secret, namespace), self._web)
            made = self._made[key] = Upstream(namespace, server, credentials, self._web, self._at_once)
        return made

    def _changed(self) -> None:
        stated = {
            (each.namespace, each.name, server.name): server
            for each in self._objects.sets()
            for server in each.servers
        }
        for key, made in list(self._made.items()):
            if stated.get(key) != made.server:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        task = asyncio.create_task(self._made.pop(key).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
