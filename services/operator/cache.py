"""What is known without asking, and whom a change concerns.

Informers follow what people declare, what that refers to, and what we made of it. What we wrote ourselves
counts from the moment of the answer, whenever the watch tells of it; its echo wakes nobody.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

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
    MCP_SERVER_SET,
    MODEL_POOL,
    OURS,
    POD,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)  # fmt: skip
from libs.resources.names import agent_names

from .key import Key
from .plan import contents, references
from .plan.owned import AGENT_LABEL, FLEET_LABEL, label
from .presence import ASKED_SECONDS, Presence
from .writing import Writing

OWNERS = (AGENT, AGENT_FLEET)
REFERRED = (MODEL_POOL, MCP_SERVER_SET)
CHILDREN = (DEPLOYMENT, STATEFUL_SET, JOB, CRON_JOB, CONFIG_MAP, SERVICE, POD_DISRUPTION_BUDGET)
"""What we make, beside ScaledObjects where the API server has them."""
_OURS_ONLY = "app.kubernetes.io/managed-by=agentctl"


class Cache:
    """What there is in one namespace, or in all (""). Call `run` in a task; use the rest after `synced`.
    `wake` is called with each key that something happened to, `gone` with each child that was deleted,
    `pod_changed` with old and new of each pod. `scaler_client` names the Secret with KEDA's
    certificate: each fleet hears of another one by `wake_later`, when KEDA has had time to see it. In a
    namespace that is not followed it is not looked for."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        wake: Callable[[Key], None],
        gone: Callable[[Object], None] = lambda child: None,
        pod_changed: Callable[[Object | None, Object | None], None] = lambda old, new: None,
        clock: Callable[[], float] = time.monotonic,
        asked_seconds: float = ASKED_SECONDS,
        scaler_client: tuple[str, str] = ("", ""),
        wake_later: Callable[[Key], None] | None = None,
    ) -> None:
        self._wake = wake
        self._wake_later = wake_later or wake
        self._scaler_client = scaler_client if namespace in ("", scaler_client[0]) else ("", "")
        self._gone = gone
        self._pod_changed = pod_changed
        self._writing = Writing(clock)
        self._children: defaultdict[Key, set[Key]] = defaultdict(set)  # of any controller
        self._pods: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # by namespace and agent
        self._refers: dict[Key, frozenset[Key]] = {}
        self._users: defaultdict[Key, set[Key]] = defaultdict(set)
        self._called: dict[Key, frozenset[str]] = {}  # the agent names of an owner
        self._namesakes: defaultdict[tuple[str, str], set[Key]] = defaultdict(set)
        self._informers = {
            **{kind: Informer(cluster, kind, namespace) for kind in OURS},
            **{kind: Informer(cluster, kind, namespace, _OURS_ONLY) for kind in (*CHILDREN, POD)},
        }
        self._contents = {
            kind: Informer(cluster, kind, namespace, keep=_hashes_only) for kind in (CONFIG_MAP, SECRET)
        }
        self._scaled = Presence(
            cluster,
            SCALED_OBJECT,
            namespace,
            _OURS_ONLY,
            partial(self._seen, SCALED_OBJECT),
            self._scaling_changed,
            asked_seconds,
        )
        for kind, informer in self._informers.items():
            informer.subscribe(partial(self._seen, kind))
        for kind, informer in self._contents.items():
            informer.subscribe(partial(self._content_seen, kind))

    async def run(self) -> None:
        """Follows the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            for informer in (*self._informers.values(), *self._contents.values()):
                group.start_soon(informer.run)
            group.start_soon(self._scaled.run)

    async def synced(self) -> None:
        """Until everything has been listed once, and it is known whether there are ScaledObjects."""
        for informer in (*self._informers.values(), *self._contents.values()):
            await informer.synced()
        await self._scaled.known()

    @property
    def scales(self) -> bool:
        """Whether the API server has ScaledObjects, and we know them."""
        return self._scaled.is_there

    def ages(self) -> dict[str, float]:
        """Seconds since each watch's last sign of life, by kind."""
        ages = {kind.name: informer.age_seconds() for kind, informer in self._informers.items()}
        if (age := self._scaled.age_seconds()) is not None:
            ages[SCALED_OBJECT.name] = age
        return ages

    def counts(self, namespace: str | None = None) -> dict[str, int]:
        """Objects in the cache, by kind: of one namespace, or of all."""

        def count(informer: Informer | Presence) -> int:
            return sum(namespace in (None, key_of(thing)[0]) for thing in informer.items())

        followed: dict[Kind, Informer | Presence] = {**self._informers}
        if self.scales:
            followed[SCALED_OBJECT] = self._scaled
        return {kind.name: count(informer) for kind, informer in followed.items()}

    # --- What there is ---

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The newest that we know: heard of, or written by us. Not to be changed."""
        followed = self._scaled if kind is SCALED_OBJECT else self._informers[kind]
        heard = followed.get(namespace, name)
        return self._writing.newest(Key(kind, namespace, name), heard)

    def begin(self, key: Key) -> None:
        """We are about to write this object. What is heard of it wakes nobody before `end`."""
        self._writing.begin(key)

    def end(self, key: Key, made: Object | None) -> None:
        """We wrote it, or (None) do not know. It counts from now on, until the watch tells of newer."""
        concerned = self._writing.end(key, made)
        if made is not None and (owner := _owner(made)):
            self._children[owner].add(key)
        self._wake_all(concerned)

    def children(self, key: Key) -> list[Object]:
        """The live objects whose controller has this kind and name, whatever its uid."""
        found = (self.get(child.kind, child.namespace, child.name) for child in self._children.get(key, ()))
        return [child for child in found if child is not None]

    def pods(self, namespace: str, agents: frozenset[str]) -> list[Object]:
        """The pods that say to be of these agents."""
        pods = self._informers[POD]
        listed = (
            pods.get(namespace, name)
            for agent in sorted(agents)
            for name in sorted(self._pods.get((namespace, agent), ()))
        )
        return [pod for pod in listed if pod is not None]

    def hashes(self, kind: Kind, namespace: str, name: str) -> Mapping[str, str]:
        """`plan.contents` of a ConfigMap or Secret; nothing if it is not there."""
        kept = self._contents[kind].get(namespace, name)
        return kept["hashes"] if kept else {}

    @property
    def scaler_certificate(self) -> str:
        """A digest of KEDA's certificate for the scaler; "" if there is none."""
        name = self._scaler_client[1]
        return self.hashes(SECRET, *self._scaler_client).get(f"{SECRET.name}/{name}/tls.crt", "")

    @property
    def awaits_certificate(self) -> bool:
        """Whether there is to be one, and is none."""
        return bool(self._scaler_client[0]) and not self.scaler_certificate

    def users(self, key: Key) -> set[Key]:
        """The Agents and AgentFleets that name this object."""
        return self._users.get(key, set())

    def namesakes(self, key: Key) -> list[Object]:
        """Other Agents and AgentFleets that use one of its agent names."""
        others = {
            other
            for name in self._called.get(key, ())
            for other in self._namesakes.get((key.namespace, name), ())
            if other != key
        }
        found = (self.get(other.kind, other.namespace, other.name) for other in sorted(others, key=str))
        return [thing for thing in found if thing is not None]

    def everything(self) -> Iterator[Key]:
        """Everything that is to be looked at."""
        for kind in OURS:
            for thing in self._informers[kind].items():
                yield Key(kind, *key_of(thing))

    # --- What happens ---

    def _seen(self, kind: Kind, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None
        key = Key(kind, *key_of(thing))
        if self._writing.is_echo(key, old, new):
            return
        if kind is SCALED_OBJECT and old is not None and new is not None and _matter(old) == _matter(new):
            return  # KEDA says every half minute how it goes
        if kind in OWNERS:
            concerned = self._owner_seen(key, new)
        elif kind in REFERRED:
            concerned = {key, *self._users.get(key, ())}
        elif kind is POD:
            concerned = self._pod_seen(old, new)
        else:
            concerned = self._child_seen(key, old, new)
        if not self._writing.keeps(key, new, concerned):
            self._wake_all(concerned)

    def _owner_seen(self, key: Key, new: Object | None) -> set[Key]:
        refers = frozenset(
            Key(kind, key.namespace, name) for kind, name in (references(new) if new is not None else ())
        )
        before = self._refers.get(key, frozenset())
        for other in before - refers:
            self._users[other].discard(key)
        for other in refers - before:
            self._users[other].add(key)
        called = agent_names(new) if new is not None else frozenset()
        called_before = self._called.get(key, frozenset())
        for name in called_before - called:
            self._namesakes[key.namespace, name].discard(key)
        for name in called - called_before:
            self._namesakes[key.namespace, name].add(key)
        self._refers[key], self._called[key] = refers, called
        if new is None:
            del self._refers[key], self._called[key]
        concerned = {key, *(other for other in before ^ refers if other.kind in REFERRED)}
        for name in called ^ called_before:
            concerned |= self._namesakes[key.namespace, name]
        return concerned

    def _child_seen(self, key: Key, old: Object | None, new: Object | None) -> set[Key]:
        owners = {owner for thing in (old, new) if thing is not None and (owner := _owner(thing))}
        current = _owner(new) if new is not None else None
        for owner in owners:
            if owner == current:
                self._children[owner].add(key)
            else:
                self._children[owner].discard(key)
        if new is None and old is not None:
            self._gone(old)
        concerned: set[Key] = set()
        for owner in owners:
            concerned |= {owner} if owner.kind in OWNERS else self._owners_of(owner)
        return concerned

    def _owners_of(self, child: Key) -> set[Key]:
        """Of a Job of a CronJob: whose the CronJob is."""
        thing = self._informers[child.kind].get(child.namespace, child.name)
        owner = _owner(thing) if thing is not None else None
        return {owner} if owner else set()

    def _pod_seen(self, old: Object | None, new: Object | None) -> set[Key]:
        concerned: set[Key] = set()
        for pod in (old, new):  # in this order: one that goes from one agent to another is of the other
            if pod is None or not (agent := label(pod, AGENT_LABEL)):
                continue
            namespace, name = key_of(pod)
            named = self._pods[namespace, agent]
            (named.add if pod is new else named.discard)(name)
            fleet = label(pod, FLEET_LABEL)
            concerned.add(Key(AGENT_FLEET if fleet else AGENT, namespace, fleet or agent))
        if concerned:
            self._pod_changed(old, new)
        return concerned

    def _content_seen(self, kind: Kind, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None
        if (old or {}).get("hashes") != (new or {}).get("hashes"):
            self._wake_all(set(self._users.get(Key(kind, *key_of(thing)), ())))
            if (kind, *key_of(thing)) == (SECRET, *self._scaler_client):
                for fleet in self._fleets():
                    self._wake_later(fleet)

    def _scaling_changed(self) -> None:
        self._wake_all(self._fleets())

    def _fleets(self) -> set[Key]:
        return {Key(AGENT_FLEET, *key_of(thing)) for thing in self._informers[AGENT_FLEET].items()}

    def _wake_all(self, keys: set[Key]) -> None:
        for key in keys:
            self._wake(key)


def _owner(thing: Object) -> Key | None:
    owner = controller_of(thing)
    if owner is None:
        return None
    kind = _CONTROLLERS.get(owner["kind"])
    return Key(kind, key_of(thing)[0], owner["name"]) if kind else None


_CONTROLLERS = {kind.name: kind for kind in (AGENT, AGENT_FLEET, CRON_JOB)}


def _matter(scaled: Object) -> Object:
    """What of a ScaledObject is of importance to its fleet."""
    metadata = {name: value for name, value in scaled["metadata"].items() if name != "resourceVersion"}
    said = scaled.get("status")
    conditions = said.get("conditions") if isinstance(said, dict) else None
    return {**scaled, "metadata": metadata, "status": conditions}


def _hashes_only(thing: Object) -> Object:
    """Of contents we keep no more than we need: a Secret's is never in our memory for longer than this."""
    metadata = thing["metadata"]
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"metadata": kept, "hashes": contents(thing)}
