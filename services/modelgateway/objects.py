"""Who may use which pool, by the objects of the cluster as they are now; and the pools' credentials.

Nothing is asked of the cluster during a call, but for a Secret that no call has needed before.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import AGENT, AGENT_FLEET, MODEL_POOL, SECRET
from libs.errors import DeniedError, InvalidError, NotFoundError, PreconditionError, UnavailableError
from libs.identity import Kind, Principal
from libs.resources.names import COORDINATOR
from libs.resources.pool import Credential

from .pools import Pool, read_pool

_SECRET_SECONDS = 5.0
_MOST_SECRET_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Grant:
    """A pool that a caller may use, and who that is for budgets."""

    pool: Pool
    agent: str = ""
    fleet: str = ""


class Objects:
    """Agents, fleets, pools and the Secrets that pools name, followed."""

    def __init__(self, cluster: Cluster, stand_in_url: str = "") -> None:
        self._cluster = cluster
        self._stand_in_url = stand_in_url
        self._agents, self._fleets, self._pools = (
            Informer(cluster, kind, keep=keep)
            for kind, keep in ((AGENT, _agent), (AGENT_FLEET, _fleet), (MODEL_POOL, _pool))
        )
        self._read: dict[tuple[str, str], Pool | PreconditionError] = {}
        self._secrets: dict[tuple[str, str], tuple[Informer, asyncio.Task[None]]] = {}
        self._has_synced = False
        self._pools.subscribe(self._changed)

    async def run(self) -> None:
        """Follows until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in (self._agents, self._fleets, self._pools):
                    tasks.create_task(informer.run())
                for informer in (self._agents, self._fleets, self._pools):
                    await informer.synced()
                self._has_synced = True
        finally:
            await self._forget(list(self._secrets))

    def check(self) -> None:
        """UnavailableError while it does not know the objects yet."""
        if not self._has_synced:
            raise UnavailableError("the objects of the cluster are not known yet")

    def grant(self, caller: Principal, pool: str = "") -> Grant:
        """The pool that a caller means, if it may use it: an agent the one that its object names, others any
        of their namespace; administrators say namespace/name. NotFoundError, DeniedError,
        PreconditionError, InvalidError."""
        self.check()
        if caller.kind is Kind.AGENT:
            return self._granted(caller, pool)
        namespace, _, name = pool.rpartition("/")
        namespace = namespace or caller.namespace
        if not name or not namespace:
            whole = "" if caller.namespace else "namespace/"
            raise InvalidError(violations={"pool": f"name one: {whole}name (HTTP: header X-Agentctl-Pool)"})
        if caller.kind is not Kind.ADMINISTRATOR and namespace != caller.namespace:
            raise _missing(namespace, name)
        return Grant(self.pool(namespace, name))

    def pool(self, namespace: str, name: str) -> Pool:
        """NotFoundError, PreconditionError."""
        found = self._read.get((namespace, name))
        if found is None:
            raise _missing(namespace, name)
        if isinstance(found, PreconditionError):
            raise PreconditionError(str(found))
        return found

    def pools(self, namespace: str) -> list[Pool]:
        """Those that can be used."""
        return [
            each for key, each in sorted(self._read.items()) if key[0] == namespace and isinstance(each, Pool)
        ]

    async def secret(self, namespace: str, credential: Credential) -> str:
        """A credential, as it is now. PreconditionError names what is missing, never what is there."""
        ref = credential.secret_ref
        key = namespace, ref.name
        if key not in self._secrets:
            informer = Informer(self._cluster, SECRET, namespace, name=ref.name)
            self._secrets[key] = informer, asyncio.create_task(informer.run(), name="secret of a pool")
        informer, _ = self._secrets[key]
        try:
            async with asyncio.timeout(_SECRET_SECONDS):
                await informer.synced()
        except TimeoutError:
            raise UnavailableError(f"Secret {namespace}/{ref.name} could not be read") from None
        thing = informer.get(namespace, ref.name)
        value = None if thing is None else (thing.get("data") or {}).get(ref.key)
        if value is None:
            raise PreconditionError(f"Secret {namespace}/{ref.name} with key {ref.key} is not there")
        try:
            text = base64.b64decode(value, validate=True).decode("ascii").strip()
        except (binascii.Error, ValueError):
            text = ""
        if not text or not text.isprintable() or len(text) > _MOST_SECRET_BYTES:
            raise PreconditionError(f"key {ref.key} of Secret {namespace}/{ref.name} is no credential")
        return text

    def _granted(self, caller: Principal, asked: str) -> Grant:
        namespace, name = caller.namespace, caller.name
        space, _, pool = asked.rpartition("/")
        if space not in ("", namespace):
            raise _missing(space, pool)
        named, fleet = self._named(namespace, name)
        if pool and pool != named:
            self.pool(namespace, pool)  # one that is not there is not there, whatever the agent names
            raise DeniedError(
                f"agent {name} may not use ModelPool {pool}: name it in model.pool of the Agent or AgentFleet"
            )
        if not named:
            raise DeniedError(f"agent {name} names no ModelPool: set model.pool of its Agent or AgentFleet")
        return Grant(self.pool(namespace, named), name, fleet)

    def _named(self, namespace: str, name: str) -> tuple[str, str]:
        """The pool that an agent's object names, and the agent's fleet. DeniedError if it has no object."""
        if (agent := self._agents.get(namespace, name)) is not None:
            return _ref(agent["spec"]), ""
        if (fleet := self._fleets.get(namespace, name)) is not None:
            return _ref(fleet["spec"]), name
        if name.endswith(COORDINATOR):
            name = name.removesuffix(COORDINATOR)
            fleet = self._fleets.get(namespace, name)
            if fleet is not None and "coordinator" in fleet["spec"]:
                return _ref(fleet["spec"]["coordinator"]), name
        raise DeniedError("there is no Agent or AgentFleet of the caller's name in its namespace")

    def _changed(self, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None  # an informer tells of something
        key = thing["metadata"]["namespace"], thing["metadata"]["name"]
        if new is None:
            self._read.pop(key, None)
        else:
            try:
                self._read[key] = read_pool(new, self._stand_in_url)
            except PreconditionError as error:
                self._read[key] = error
        needed = {
            (pool.namespace, endpoint.credential.secret_ref.name)
            for pool in self._read.values()
            if isinstance(pool, Pool)
            for endpoint in pool.endpoints.values()
            if endpoint.credential is not None
        }
        for stale in self._secrets.keys() - needed:
            self._secrets.pop(stale)[1].cancel()

    async def _forget(self, keys: list[tuple[str, str]]) -> None:
        tasks = [self._secrets.pop(key)[1] for key in keys]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _missing(namespace: str, name: str) -> NotFoundError:
    return NotFoundError(f"there is no ModelPool {namespace}/{name}")


def _ref(spec: Mapping[str, Any]) -> str:
    model = spec.get("model") or {}
    return str(model.get("pool") or "")


def _slim(thing: Object, spec: Mapping[str, Any]) -> Object:
    metadata = thing["metadata"]
    kept = {name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "spec": dict(spec)}


def _model_of(spec: object) -> dict[str, Any]:
    model = spec.get("model") if isinstance(spec, dict) else None
    return {"model": model} if isinstance(model, dict) else {}


def _agent(thing: Object) -> Object:
    return _slim(thing, _model_of(thing.get("spec")))


def _fleet(thing: Object) -> Object:
    spec = thing.get("spec") or {}
    kept = _model_of(spec.get("template"))
    if isinstance(coordinator := spec.get("coordinator"), dict):
        kept["coordinator"] = _model_of(coordinator.get("template"))
    return _slim(thing, kept)


def _pool(thing: Object) -> Object:
    return _slim(thing, thing.get("spec") or {})
