"""Who may use which servers, by the objects of the cluster as they are now; and the servers' Secrets."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET, SECRET
from libs.errors import DeniedError, InvalidError, NotFoundError, PreconditionError, UnavailableError
from libs.identity import Kind, Principal
from libs.resources.names import COORDINATOR
from libs.resources.pool import SecretRef

from .sets import HeaderAuth, OAuth, Server, ServerSet, read_set

SET_HEADER = "x-agentctl-server-set"
_SECRET_SECONDS = 5.0
_MOST_SECRET_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Granted:
    """A server that a caller may use, and the set that it is of."""

    set_name: str
    server: Server


@dataclass(frozen=True, slots=True)
class Grant:
    """What a caller may use: of two servers of one name the one of the set that is named first."""

    namespace: str
    servers: Mapping[str, Granted]


class Objects:
    """Agents, fleets, server sets and the Secrets that they name, followed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._agents = Informer(cluster, AGENT, keep=_agent)
        self._fleets = Informer(cluster, AGENT_FLEET, keep=_fleet)
        self._set_objects = Informer(cluster, MCP_SERVER_SET)
        self._sets: dict[tuple[str, str], ServerSet | str] = {}
        self._secrets: dict[tuple[str, str], tuple[Informer, asyncio.Task[None]]] = {}
        self._has_synced = False
        self.changed: Callable[[], None] = lambda: None
        """Called when a set has changed or gone."""
        self._set_objects.subscribe(self._changed)

    async def run(self) -> None:
        """Follows until it is cancelled."""
        informers = (self._agents, self._fleets, self._set_objects)
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in informers:
                    tasks.create_task(informer.run())
                for informer in informers:
                    await informer.synced()
                self._has_synced = True
        finally:
            tasks_of_secrets = [task for _, task in self._secrets.values()]
            for task in tasks_of_secrets:
                task.cancel()
            if tasks_of_secrets:
                await asyncio.wait(tasks_of_secrets)

    def check(self) -> None:
        """UnavailableError while it does not know the objects yet."""
        if not self._has_synced:
            raise UnavailableError("the objects of the cluster are not known yet")

    def sets(self) -> list[ServerSet]:
        """Those that can be used, of all namespaces."""
        return [each for each in self._sets.values() if isinstance(each, ServerSet)]

    def grant(self, caller: Principal, asked: str = "") -> Grant:
        """The servers of the sets that the caller's object names; with `asked` of that set only. Users may
        use all sets of their namespace, administrators the one that they name: namespace/name.
        NotFoundError, DeniedError, InvalidError, PreconditionError."""
        self.check()
        space, _, wanted = asked.rpartition("/")
        namespace = caller.namespace or space
        if not namespace:
            raise InvalidError(violations={SET_HEADER: "name one: namespace/name"})
        if space not in ("", namespace):
            raise _missing(space, wanted)
        if caller.kind is Kind.AGENT:
            names = self._named(namespace, caller.name)
        else:
            names = sorted(name for space, name in self._sets if space == namespace)
        if wanted:
            found = self._sets.get((namespace, wanted))
            if found is None:
                raise _missing(namespace, wanted)
            if wanted not in names:
                raise _denied(caller, f"MCPServerSet {wanted}")
            if isinstance(found, str):
                raise PreconditionError(found)
            names = [wanted]
        servers: dict[str, Granted] = {}
        for name in names:
            if isinstance(found := self._sets.get((namespace, name)), ServerSet):
                for server in found.servers:
                    servers.setdefault(server.name, Granted(name, server))
        return Grant(namespace, dict(sorted(servers.items())))

    def only(self, grant: Grant, caller: Principal, server: str) -> Grant:
        """That server alone. DeniedError if another set of the namespace has it, else NotFoundError."""
        if server in grant.servers:
            return Grant(grant.namespace, {server: grant.servers[server]})
        for each in self.sets():
            if each.namespace == grant.namespace and any(it.name == server for it in each.servers):
                raise _denied(caller, f"server {server} of MCPServerSet {each.name}")
        raise NotFoundError(f"there is no MCP server {server} in {grant.namespace}")

    async def secret(self, namespace: str, ref: SecretRef) -> str:
        """A credential, as it is now. PreconditionError names what is missing, never what is there."""
        key = namespace, ref.name
        if key not in self._secrets:
            informer = Informer(self._cluster, SECRET, namespace, name=ref.name)
            self._secrets[key] = informer, asyncio.create_task(informer.run(), name="secret of a server")
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

    def _named(self, namespace: str, name: str) -> list[str]:
        """The sets that an agent's object names. DeniedError if it has none."""
        for informer in (self._agents, self._fleets):
            if (thing := informer.get(namespace, name)) is not None:
                return list(thing["spec"]["sets"])
        if name.endswith(COORDINATOR):
            fleet = self._fleets.get(namespace, name.removesuffix(COORDINATOR))
            if fleet is not None and "coordinator" in fleet["spec"]:
                return list(fleet["spec"]["coordinator"])
        raise DeniedError("there is no Agent or AgentFleet of the caller's name in its namespace")

    def _changed(self, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None  # an informer tells of something
        key = thing["metadata"]["namespace"], thing["metadata"]["name"]
        if new is None:
            self._sets.pop(key, None)
        else:
            try:
                self._sets[key] = read_set(new)
            except InvalidError as error:
                self._sets[key] = str(error)
        needed = {
            (each.namespace, server.auth.secret_ref.name)
            for each in self.sets()
            for server in each.servers
            if isinstance(server.auth, HeaderAuth | OAuth)
        }
        for stale in self._secrets.keys() - needed:
            self._secrets.pop(stale)[1].cancel()
        self.changed()


def _missing(namespace: str, name: str) -> NotFoundError:
    return NotFoundError(f"there is no MCPServerSet {namespace}/{name}")


def _denied(caller: Principal, what: str) -> DeniedError:
    return DeniedError(
        f"{caller.name} may not use {what}: name the set in mcpServers of the Agent or AgentFleet"
    )


def _named_sets(spec: object) -> list[str]:
    found = spec.get("mcpServers") if isinstance(spec, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _slim(thing: Object, spec: dict[str, Any]) -> Object:
    metadata = thing["metadata"]
    kept = {name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "spec": spec}


def _agent(thing: Object) -> Object:
    return _slim(thing, {"sets": _named_sets(thing.get("spec"))})


def _fleet(thing: Object) -> Object:
    spec = thing.get("spec") or {}
    kept: dict[str, Any] = {"sets": _named_sets(spec.get("template"))}
    if isinstance(coordinator := spec.get("coordinator"), dict):
        kept["coordinator"] = _named_sets(coordinator.get("template"))
    return _slim(thing, kept)
