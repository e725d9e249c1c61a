"""What the tests of the operator stand on: manifests, wrappers of a cluster, ways to wait for an effect."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from libs.cluster import Access, Bearer, Change, Cluster, Listing, Log, Object, Propagation, key_of
from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    DEPLOYMENT,
    EVENT,
    JOB,
    LEASE,
    POD,
    SCALED_OBJECT,
    Kind,
    kind_of,
)
from libs.errors import (
    ConflictError,
    ExhaustedError,
    InvalidError,
    MeshError,
    NotFoundError,
    QueueInUseError,
    UnavailableError,
)
from services.operator.key import Key
from services.operator.operating import Operator, reconciling
from services.operator.plan import Shards
from services.operator.queues import Rules
from services.operator.settings import Settings

NODE = "test/node"
IMAGE = "registry.test/agent:1"
_PATIENCE = 10.0


class Through(Cluster):
    """A cluster that passes everything on, and says `before` each write what it is."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner

    def before(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        """Raises to forbid it."""

    def after(self) -> None:
        """The write was made."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self.inner.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        return await self.inner.list(kind, namespace, labels, name=name)

    def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", *, since: str = "", name: str = ""
    ) -> AsyncIterator[Change]:
        return self.inner.watch(kind, namespace, labels, since=since, name=name)

    async def create(self, thing: Object) -> Object:
        self._before("create", thing)
        made = await self.inner.create(thing)
        self.after()
        return made

    async def apply(
        self, thing: Object, manager: str, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        self._before(subresource or "apply", thing)
        made = await self.inner.apply(thing, manager, subresource=subresource, dry_run=dry_run)
        self.after()
        return made

    async def replace(self, thing: Object) -> Object:
        self._before("replace", thing)
        made = await self.inner.replace(thing)
        self.after()
        return made

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background"
    ) -> None:
        self.before("delete", kind, namespace, name)
        await self.inner.delete(kind, namespace, name, uid=uid, propagation=propagation)
        self.after()

    async def review_token(self, token: str, audience: str) -> Bearer:
        return await self.inner.review_token(token, audience)

    async def review_access(self, bearer: Bearer, access: Access) -> bool:
        return await self.inner.review_access(bearer, access)

    async def issue_token(self, namespace: str, account: str, audience: str, seconds: int) -> str:
        return await self.inner.issue_token(namespace, account, audience, seconds)

    def logs(self, log: Log) -> AsyncIterator[bytes]:
        return self.inner.logs(log)

    async def version(self) -> str:
        return await self.inner.version()

    def _before(self, verb: str, thing: Object) -> None:
        self.before(verb, kind_of(thing["apiVersion"], thing["kind"]), *key_of(thing))


class Counting(Through):
    """Keeps what was written, but for the Lease, and reads of single objects too."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner)
        self.writes: list[str] = []
        self.reads: list[str] = []

    def before(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        if kind is not LEASE:
            self.writes.append(f"{verb} {kind.name} {name}")

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        if kind is not LEASE:
            self.reads.append(f"get {kind.name} {name}")
        return await super().get(kind, namespace, name)

    @property
    def lasting(self) -> list[str]:
        """Without events."""
        return [write for write in self.writes if not write.startswith("create Event")]


class Refusing(Counting):
    """An API server that finds something wrong with every workload of one name, or that has a bug with it."""

    def __init__(self, inner: Cluster, name: str, error: Exception) -> None:
        super().__init__(inner)
        self._name, self._error = name, error

    def before(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        super().before(verb, kind, namespace, name)
        if (verb, name) == ("apply", self._name):
            raise self._error


class Mortal(Through):
    """Dies after so many writes: every call fails from then on, as those of a killed process that nobody
    ever sees. `dead` tells when."""

    def __init__(self, inner: Cluster, writes: int) -> None:
        super().__init__(inner)
        self._left = writes
        self.dead = anyio.Event()

    def before(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        if self.dead.is_set():
            raise UnavailableError("dead")
        if kind in (LEASE, EVENT):
            return
        if self._left == 0:
            self.dead.set()
            raise UnavailableError("dead")
        self._left -= 1


class Visited(Counting):
    """A cluster that has ScaledObjects only while `is_there`."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner)
        self.is_there = True

    def before(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        self._ask(kind)
        super().before(verb, kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        self._ask(kind)
        return await super().list(kind, namespace, labels, name=name)

    async def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", *, since: str = "", name: str = ""
    ) -> AsyncIterator[Change]:
        self._ask(kind)
        async for change in super().watch(kind, namespace, labels, since=since, name=name):
            self._ask(kind)
            yield change

    def _ask(self, kind: Kind) -> None:
        if kind is SCALED_OBJECT and not self.is_there:
            raise NotFoundError("404 page not found")


@dataclass
class Told:
    """A coordination that keeps what it was told."""

    queues: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    shards: dict[str, Shards] = field(default_factory=dict)
    configured: int = 0
    looks: Counter[str] = field(default_factory=Counter)
    released: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    refuses: str = ""
    in_use: str = ""
    """Why a queue may not be divided anew."""
    configuring: Callable[[Rules], None] = lambda rules: None
    dividing: Callable[[str, int], None] = lambda queue, count: None  # called before shards change

    async def configure(self, queue: str, rules: Rules, check: Callable[[], None]) -> tuple[bool, Shards]:
        self.looks[queue] += 1
        self.configuring(rules)
        if self.down:
            raise UnavailableError("down")
        if self.refuses:
            raise ExhaustedError(self.refuses)
        if changed := self.queues.get(queue) != (rules.max_attempts, rules.agents):
            check()
            self.queues[queue] = rules.max_attempts, rules.agents
        there = self.shards.setdefault(queue, Shards(0, 0))
        if rules.shards not in (None, there.count) and rules.epoch == there.epoch:
            check()
            if self.in_use:
                raise QueueInUseError(self.in_use)
            self.dividing(queue, rules.shards or 0)
            self.divide(queue, rules.shards or 0)
            changed = True
        self.configured += changed
        return changed, self.shards[queue]

    @property
    def looked(self) -> int:
        """How often it was asked to make a queue as it should be."""
        return self.looks.total()

    def divide(self, queue: str, count: int) -> None:
        """As ConfigureQueue does it: the epoch is never the same again."""
        self.shards[queue] = Shards(count, self.shards[queue].epoch + 1)

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        self.released.append((namespace, pod_uid))
        if self.refuses:
            raise InvalidError(self.refuses)


@dataclass
class World:
    """A cluster, a namespace in it, and an operator's settings."""

    cluster: Cluster
    namespace: str
    folder: Path
    system: str = "agentctl-system"
    real: bool = False
    scaler: str = ""
    """The scaler's address, if anything is to scale."""
    keda: str = ""
    """The namespace with KEDA's certificate."""
    gateways: dict[str, Any] = field(default_factory=dict)
    """The settings that say where gateways are."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def settings(self, replica: str = "operator-0") -> Settings:
        return Settings(
            tls_dir=self.folder,
            namespace=self.system,
            only_namespace=self.namespace if self.real else "",  # what others test there is not ours
            replica=replica,
            agent_image="registry.test/agentctl:1",
            coordination_address="coordination.test:7410",
            identity_address="operator.test:7412",
            scaler_address=self.scaler,
            keda_namespace=self.keda,
            resync=timedelta(minutes=10),
            **self.gateways,
        )

    @asynccontextmanager
    async def operator(
        self, cluster: Cluster | None = None, *, replica: str = "operator-0", **options: Any
    ) -> AsyncIterator[Operator]:
        """An operator at work, in the lead unless another one is."""
        async with reconciling(self.settings(replica), cluster or self.cluster, **options) as operator:
            with anyio.fail_after(_PATIENCE):
                await operator.cache.synced()
            yield operator

    # --- What people do ---

    async def apply(self, thing: Object) -> Object:
        """Makes it, or makes its spec so, as kubectl replace does."""
        kind = kind_of(thing["apiVersion"], thing["kind"])
        while True:
            there = await self.find(kind, thing["metadata"]["name"])
            if there is None:
                return await self.cluster.create(thing)
            with suppress(ConflictError):  # the operator reports meanwhile
                return await self.cluster.replace({**there, "spec": thing["spec"]})

    def agent(self, name: str, mode: str = "loop", **spec: Any) -> Object:
        """An Agent; blocks that its mode needs are there."""
        blocks: dict[str, dict[str, Any]] = {
            "loop": {"loop": {"interval": "30s"}},
            "schedule": {"schedule": {"cron": "0 * * * *", "suspend": True}},
            "workflow": {"workflow": {"inline": "steps: []"}},
            "reactive": {"subscribe": ["mcp://tickets/new"]},
        }
        said = {"mode": mode, "image": IMAGE, "instruction": "look", **blocks.get(mode, {}), **spec}
        return self.thing(AGENT, name, said)

    def fleet(self, name: str, **spec: Any) -> Object:
        """An AgentFleet without agents at first: scaled to zero."""
        return self.thing(AGENT_FLEET, name, {"template": {"image": IMAGE}, **spec})

    def thing(self, kind: Kind, name: str, spec: Any) -> Object:
        return {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }

    async def get(self, kind: Kind, name: str) -> Object:
        return await self.cluster.get(kind, self.namespace, name)

    async def find(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.get(kind, name)
        except NotFoundError:
            return None

    async def events(self) -> list[Object]:
        """Those of agentctl, oldest first."""
        listing = await self.cluster.list(EVENT, self.namespace)
        ours = [each for each in listing.items if each.get("reportingController") == "agentctl.dev/operator"]
        return sorted(ours, key=lambda each: str(each["eventTime"]))

    def key(self, kind: Kind, name: str) -> Key:
        return Key(kind, self.namespace, name)

    # --- What the rest of a cluster does ---

    async def pod(self, owner: Object, agent: str, phase: str = "Running", fleet: str = "") -> Object:
        """A pod of a workload, as a controller would have made it: of containers only what they are told. It
        goes no sooner than `bury` lets it."""
        metadata = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        name = f"{metadata['name']}-{next(self._numbers)}"
        labels = {"app.kubernetes.io/managed-by": "agentctl", "agentctl.dev/agent": agent}
        if fleet:
            labels["agentctl.dev/fleet"] = fleet
        template = owner["spec"].get("template") or {"spec": {"containers": [{"name": "agent"}]}}
        containers = [
            {"name": each["name"], "image": "registry.test/x", "env": each.get("env", [])}
            for each in template["spec"]["containers"]
        ]
        made = await self.cluster.create({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": labels, "ownerReferences": [reference],
                "finalizers": [NODE],
            },
            "spec": {"containers": containers},
        })  # fmt: skip
        return await self.report(made, {"phase": phase})

    async def report(self, thing: Object, status: Object) -> Object:
        """Its status, as whoever runs it says it."""
        metadata = {name: thing["metadata"][name] for name in ("name", "namespace")}
        said = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": metadata}
        return await self.cluster.apply({**said, "status": status}, "kubelet", subresource="status")

    async def bury(self, name: str) -> None:
        """The pod, which was deleted, is gone."""
        pod = await self.get(POD, name)
        await self.cluster.replace({**pod, "metadata": {**pod["metadata"], "finalizers": []}})

    async def controllers(self) -> None:
        """What controllers and nodes do, for ever: each new workload gets a pod, each deleted pod ends."""

        async def make_pods(kind: Kind) -> None:
            async for change in self.cluster.watch(kind, self.namespace):
                if change.type == "ADDED":
                    with suppress(MeshError):  # deleted meanwhile
                        await self.pod(change.object, change.object["metadata"]["name"])

        async def end_pods() -> None:
            async for change in self.cluster.watch(POD, self.namespace):
                metadata = change.object["metadata"]
                if "deletionTimestamp" in metadata and metadata.get("finalizers") == [NODE]:
                    with suppress(MeshError):
                        await self.bury(metadata["name"])

        async with anyio.create_task_group() as group:
            for kind in (DEPLOYMENT, JOB):
                group.start_soon(make_pods, kind)
            group.start_soon(end_pods)

    # --- Waiting ---

    async def until(self, what: Callable[[], Any], why: str = "") -> Any:
        """The first truth that `what`, which may be a coroutine function, gives."""
        with anyio.move_on_after(_PATIENCE):
            while True:
                found = what()
                if hasattr(found, "__await__"):
                    found = await found
                if found:
                    return found
                await anyio.sleep(0.05 if self.real else 0.005)
        raise AssertionError(f"it never came: {why or what}")

    async def there(self, kind: Kind, name: str) -> Object:
        """The object, as soon as it is there."""

        async def look() -> Object | None:
            return await self.find(kind, name)

        found: Object = await self.until(look, f"{kind.name} {name}")
        return found

    async def gone(self, kind: Kind, name: str) -> None:
        """As soon as it is not there."""

        async def look() -> bool:
            return await self.find(kind, name) is None

        await self.until(look, f"{kind.name} {name} gone")

    async def accepted(self, kind: Kind, name: str, reason: str = "", status: str = "") -> Object:
        """The condition Accepted of the newest generation, once it has this reason or status."""
        return await self.condition(kind, name, "Accepted", reason, status)

    async def condition(self, kind: Kind, name: str, type: str, reason: str = "", status: str = "") -> Object:
        async def look() -> Object | None:
            thing = await self.get(kind, name)
            for each in (thing.get("status") or {}).get("conditions", ()):
                newest = each.get("observedGeneration") == thing["metadata"]["generation"]
                fits = reason in ("", each["reason"]) and status in ("", each["status"])
                if each["type"] == type and newest and fits:
                    return dict(each)
            return None

        found: Object = await self.until(look, f"{type} {status} {reason} of {kind.name} {name}")
        return found

    async def settle(self, operator: Operator, kind: Kind, names: Sequence[str]) -> None:
        """A pass over each that begins now, and every key that waits done."""
        for name in names:
            await operator.controller.reconcile_now(self.key(kind, name))
        await self.until(lambda: not operator.controller.depths(), "an empty queue")


def namespace(name: str) -> Object:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
