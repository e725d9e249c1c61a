"""A home of a few dozen lines for the tests of what stands on the port: it fails on command."""

from __future__ import annotations

import asyncio
import copy
from uuid import uuid4

from libs.cluster import Change, Cluster, ExpiredError, Listing, key_of
from libs.cluster.kinds import kind_of
from libs.errors import ConflictError, NotFoundError, UnavailableError, UnimplementedError


class World:
    """Objects and their history."""

    def __init__(self):
        self.objects = {}
        self.history = []
        self.revision = 0
        self.oldest = 0
        self.moved = asyncio.Event()
        self.cuts = 0

    def put(self, type, thing):
        self.revision += 1
        thing["metadata"]["resourceVersion"] = str(self.revision)
        kind = kind_of(thing["apiVersion"], thing["kind"])
        self.history.append((self.revision, kind, Change(type, copy.deepcopy(thing))))
        self.stir()

    def bookmark(self):
        """Tells watchers of a revision at which nothing of theirs happened."""
        self.revision += 1
        change = Change("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}})
        self.history.append((self.revision, None, change))
        self.stir()

    def compact(self):
        """Forgets all history."""
        self.oldest = self.revision
        self.history.clear()

    def cut(self):
        """Breaks all watches."""
        self.cuts += 1
        self.stir()

    def stir(self):
        self.moved.set()
        self.moved = asyncio.Event()


async def settled():
    """No delay."""


class FakeCluster(Cluster):
    """One client's way to a world. While `down`, nothing works; while `deaf`, things happen but no answer
    comes. `delay` is awaited on the way there and on the way back."""

    def __init__(self, world, delay=None):
        self.world = world
        self.delay = delay or settled
        self.down = self.deaf = False
        self.calls = []

    async def _check(self, call):
        self.calls.append(call)
        await self.delay()
        if self.down:
            raise UnavailableError("down")

    async def _answer(self, thing):
        thing = copy.deepcopy(thing)
        await self.delay()
        if self.deaf:
            raise UnavailableError("no answer")
        return thing

    async def get(self, kind, namespace, name):
        await self._check("get")
        try:
            thing = self.world.objects[kind, namespace, name]
        except KeyError:
            raise NotFoundError(name) from None
        return await self._answer(thing)

    async def list(self, kind, namespace="", labels="", *, name=""):
        await self._check("list")
        items = [thing for key, thing in self.world.objects.items() if key[0] == kind]
        revision = str(self.world.revision)
        return Listing(await self._answer(items), revision)

    async def watch(self, kind, namespace="", labels="", *, since="", name=""):
        await self._check("watch")
        seen, cuts = int(since), self.world.cuts
        while True:
            if seen < self.world.oldest:
                raise ExpiredError("too old")
            for revision, of, change in list(self.world.history):
                if revision > seen and of in (kind, None):
                    yield copy.deepcopy(change)
            seen = max(seen, self.world.revision)
            await self.world.moved.wait()
            if self.world.cuts != cuts:
                raise UnavailableError("cut")

    async def create(self, thing):
        await self._check("create")
        key = (kind_of(thing["apiVersion"], thing["kind"]), *key_of(thing))
        if key in self.world.objects:
            raise ConflictError("exists")
        thing = copy.deepcopy(thing)
        thing["metadata"]["uid"] = str(uuid4())
        self.world.objects[key] = thing
        self.world.put("ADDED", thing)
        return await self._answer(thing)

    async def replace(self, thing):
        await self._check("replace")
        key = (kind_of(thing["apiVersion"], thing["kind"]), *key_of(thing))
        if key not in self.world.objects:
            raise NotFoundError(key[2])
        old = self.world.objects[key]
        if thing["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        self.world.objects[key] = thing = copy.deepcopy(thing)
        self.world.put("MODIFIED", thing)
        return await self._answer(thing)

    async def delete(self, kind, namespace, name, *, uid="", propagation="Background"):
        await self._check("delete")
        self.world.put("DELETED", self.world.objects.pop((kind, namespace, name)))

    async def apply(self, thing, manager, *, subresource="", dry_run=False):
        raise UnimplementedError

    async def review_token(self, token, audience):
        raise UnimplementedError

    async def review_access(self, bearer, access):
        raise UnimplementedError

    async def issue_token(self, namespace, account, audience, seconds):
        raise UnimplementedError

    async def logs(self, log):
        raise UnimplementedError
        yield

    async def version(self):
        return "fake"
