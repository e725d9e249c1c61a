"""Brings one object to its plan. The same for every reason: created, changed, resumed, timer.

A pass makes what differs so and reports once. It holds no state that matters: one that ends between any two
writes is finished by the next, here or in another process. Nothing waits inside a pass; what has to be gone
first wakes the object when it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from libs.cluster import Cluster, Object, key_of
from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    MCP_SERVER_SET,
    MODEL_POOL,
    SCALED_OBJECT,
    SECRET,
    STATEFUL_SET,
    Kind,
    kind_of,
)
from libs.errors import InvalidError, NotFoundError
from libs.resources.fleet import FleetSpec
from libs.resources.names import agent_names

from .cache import OWNERS, Cache
from .children import WORKLOADS, Settled, Step, is_going, is_leftover, obstacles, steps
from .events import Recorder
from .identity.publication import NAME as TRUST
from .key import Key
from .plan import (
    Action,
    Context,
    Plan,
    Problem,
    Queue,
    Rendering,
    Says,
    Shards,
    certificate_in,
    conflict,
    counted,
    desired,
    queue_of,
    references,
    said_by,
)
from .plan.reading import read
from .pods import is_alive, is_worker, told
from .queues import Heard
from .runs import belongs
from .status import Observed, events, status
from .writes import KEEPER, Begin, Note, Writes

Queued = Callable[[Key, Queue | None, str, frozenset[str]], None]


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass over an object did."""

    writes: int = 0
    last_write_at: float | None = None
    refused: bool = False
    """Something stands in the way, which a condition names; trying again would not help."""
    gone: bool = False
    """There is nothing to look at again."""
    again: float | None = None
    """Seconds after which it is to be looked at again. None: that has time."""

    @property
    def result(self) -> str:
        """As the histogram has it."""
        return "refused" if self.refused else "written" if self.writes else "unchanged"


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pass would do."""

    steps: Sequence[Step]
    problems: Sequence[Problem]


class Reconciler:
    """Reads the cache, writes by `begin`, says in `queued` which queue a fleet needs (None: it is gone),
    since when there is the fleet and on which queues its agents are at work, and has whom to trust published
    where there are pods. `heard` knows how it stands with the queue of a fleet, which has this name."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        begin: Begin,
        recorder: Recorder,
        rendering: Rendering,
        settled: Settled,
        queued: Queued,
        publish: Callable[[str], Awaitable[None]],
        queue_trouble: Callable[[Key], str] = lambda fleet: "",
        heard: Callable[[Key, str], Heard] = lambda fleet, queue: Heard(),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._begin = begin
        self._recorder = recorder
        self._rendering = rendering
        self._settled = settled
        self._queued = queued
        self._publish = publish
        self._queue_trouble = queue_trouble
        self._heard = heard
        self._now = now

    async def reconcile(self, key: Key) -> Pass:
        """One pass. Raises what the cluster raises, except for refusals, which become a condition."""
        thing = self._cache.get(key.kind, key.namespace, key.name)
        if thing is None or is_going(thing):  # owner references do the rest
            self.register(key)
            return Pass(gone=True)
        writes = self._begin()
        try:
            plan, context, waits = Plan(), Context(self._rendering), False
            if key.kind in OWNERS:
                context = self._context(thing, key)
                self._register(key, thing, context)
                plan, waits = await self._bring(thing, key, context, writes)
            else:
                plan = desired(thing, context)
            await self._report(_undone(thing) if waits else thing, key, plan, context, writes)
        finally:
            for note in writes.notes:
                self._recorder.record(thing, note.reason, note.action, note.text, note.type)
        return Pass(writes.count, writes.last_at, refused=bool(plan.problems))

    def register(self, key: Key) -> None:
        """Says in `queued` what there is to say of a fleet, whether it can be as it says or not."""
        thing = self._cache.get(key.kind, key.namespace, key.name)
        if thing is None or is_going(thing):
            self._register(key)
        else:
            self._register(key, thing, self._context(thing, key))

    def preview(self, thing: Object) -> Preview:
        """What a pass over this object would do, by what we know; the API server is not asked. Where there
        are no workers yet it shows those that there will be once coordination has divided their queue."""
        key = _key(thing)
        context = self._context(thing, key)
        plan = desired(thing, context)
        if plan.waits and plan.queue and context.workers is None:
            epoch = context.shards.epoch if context.shards else 0
            plan = desired(thing, replace(context, shards=Shards(plan.queue.shards, epoch + 1)))
        if problems := plan.problems or obstacles(thing, plan, self._cache.get):
            return Preview((), problems)
        return Preview(self._steps(thing, key, plan), ())

    # --- Doing ---

    async def _bring(self, thing: Object, key: Key, context: Context, writes: Writes) -> tuple[Plan, bool]:
        """Applies the plan. The plan with the problems that this met; whether something has to go first."""
        plan = desired(thing, context)
        if not plan.problems:
            plan = replace(plan, problems=obstacles(thing, plan, self._cache.get))
        if plan.problems:
            return plan, False
        todo = self._steps(thing, key, plan)
        if self._cache.get(CONFIG_MAP, key.namespace, TRUST) is None:
            await self._publish(key.namespace)
        blocked = await self._clear(thing, key, todo, writes)
        for step in todo:
            if step.action not in (Action.CREATE, Action.UPDATE):
                continue
            if blocked and step.action is Action.CREATE and step.kind in WORKLOADS:
                continue
            if problem := await self._make(thing, step, writes):
                return replace(plan, problems=(problem,)), False
        return plan, blocked

    async def _clear(self, thing: Object, key: Key, todo: Sequence[Step], writes: Writes) -> bool:
        """Deletes what has to go. Whether workloads have to wait: no singleton starts while a pod of the one
        before it may run, and none takes the place of what is still there."""
        blocked = any(is_leftover(child, thing) for child in self._cache.children(key))
        for step in todo:
            live = step.live
            if live is None:
                continue
            if is_going(live):
                blocked = blocked or step.kind in WORKLOADS
            elif step.action in ("delete", Action.RECREATE):
                is_workload = step.kind in WORKLOADS
                try:
                    await writes.delete(live, "Foreground" if is_workload else "Background")
                except NotFoundError:
                    pass  # and the watch is about to say so
                else:
                    verb = "Deleted" if step.action == "delete" else "Recreated"
                    writes.notes.append(Note(verb, "Delete", f"{step.name}: {step.reason}"))
                blocked = blocked or is_workload
        return blocked or (key.kind is AGENT and self._alive(thing, todo))

    def _alive(self, thing: Object, todo: Sequence[Step]) -> bool:
        """Whether a workload is to be made while a pod of an earlier one may still run."""
        if not any(step.action is Action.CREATE and step.kind in WORKLOADS for step in todo):
            return False
        return any(map(is_alive, self._cache.pods(key_of(thing)[0], agent_names(thing))))

    async def _make(self, thing: Object, step: Step, writes: Writes) -> Problem | None:
        there = step.live
        if there is None and step.action is Action.CREATE:
            # Our cache has only what bears our label, and apply would take what somebody else made.
            there = await self._look(step)
            if there is not None and not is_leftover(there, thing) and (problem := conflict(there, thing)):
                return problem
        if there is not None and (is_going(there) or is_leftover(there, thing)):
            return None
        try:
            if said_by(step.thing) == Says.SCALER:
                await self._hand_over(thing, step.thing, there, writes)
            made = await writes.apply(_unless_changed(step.thing, there))
        except InvalidError as error:
            return Problem("Refused", f"{step.name}: {error}")
        self._settled.learn(step.thing, made)
        verb = "Created" if step.action is Action.CREATE else "Updated"
        writes.notes.append(Note(verb, "Apply", f"{step.name}: {step.reason}"))
        return None

    async def _hand_over(self, thing: Object, wanted: Object, live: Object | None, writes: Writes) -> None:
        """Before we say no more how many workers there are, somebody else says it: as many as there are. The
        annotation tells that this was done, and comes with the manifest."""
        if live is not None and said_by(live) == Says.SCALER:
            return
        metadata = {name: wanted["metadata"][name] for name in ("name", "namespace")}
        if live is None:
            spec = read(thing)
            assert isinstance(spec, FleetSpec)
            live = await writes.apply(counted(wanted, spec.scaling.min_replicas))
        else:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        metadata["uid"] = live["metadata"]["uid"]
        replicas = {"replicas": live["spec"].get("replicas", 1)}
        identity = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": metadata}
        await writes.apply({**identity, "spec": replicas}, manager=KEEPER)

    async def _look(self, step: Step) -> Object | None:
        try:
            return await self._cluster.get(step.kind, *key_of(step.thing))
        except NotFoundError:
            return None

    async def _report(self, thing: Object, key: Key, plan: Plan, context: Context, writes: Writes) -> None:
        old = thing.get("status") or {}
        new = status(
            thing,
            Observed(
                self._now(),
                plan,
                self._observed_children(thing, key),
                self._cache.pods(key.namespace, agent_names(thing)) if key.kind in OWNERS else (),
                users=len(self._cache.users(key)),
                queue_trouble=self._queue_trouble(key),
                shards=context.shards,
                awaits_certificate=context.scales and context.awaits_certificate,
            ),
        )
        if new == old:
            return
        metadata = thing["metadata"]
        identity = {name: metadata[name] for name in ("name", "namespace", "uid")}
        await writes.apply(
            {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": identity, "status": new},
            "status",
        )
        writes.notes += [
            Note(event.reason, "Reconcile", event.message, event.type) for event in events(old, new, thing)
        ]

    # --- Knowing ---

    def _steps(self, thing: Object, key: Key, plan: Plan) -> list[Step]:
        uid = thing["metadata"].get("uid")
        children = [child for child in self._cache.children(key) if not is_leftover(child, thing)]
        return steps(thing, plan, children if uid else (), self._cache.get, self._settled)

    def _observed_children(self, thing: Object, key: Key) -> dict[tuple[Kind, str], Object]:
        found: dict[tuple[Kind, str], Object] = {}
        for child in self._cache.children(key):
            if is_leftover(child, thing):
                continue
            kind = kind_of(child["apiVersion"], child["kind"])
            name = child["metadata"]["name"]
            found[kind, name] = child
            if kind is CRON_JOB:
                for job in self._cache.children(Key(CRON_JOB, key.namespace, name)):
                    if not is_leftover(job, child):
                        found[JOB, job["metadata"]["name"]] = job
        return found

    def _context(self, thing: Object, key: Key) -> Context:
        named: dict[Kind, dict[str, Object]] = {MODEL_POOL: {}, MCP_SERVER_SET: {}}
        hashes: dict[str, str] = {}
        for kind, name in references(thing):
            if kind in (CONFIG_MAP, SECRET):
                hashes |= self._cache.hashes(kind, key.namespace, name)
            elif (found := self._cache.get(kind, key.namespace, name)) is not None:
                named[kind][name] = found
        context = Context(
            self._rendering, named[MODEL_POOL], named[MCP_SERVER_SET], hashes, self._cache.namesakes(key)
        )
        if key.kind is not AGENT_FLEET:
            return context
        asked = queue_of(thing, context)
        heard = self._heard(key, asked.name) if asked else Heard()
        scaled = self._cache.get(SCALED_OBJECT, key.namespace, key.name)
        return replace(
            context,
            scales=bool(self._rendering.scaler_address) and self._cache.scales,
            workers=next((each for each in self._makers(key) if belongs(each, thing)), None),
            workers_alive=[pod["metadata"]["name"] for pod in self._workers(key)],
            shards=heard.shards,
            queue_owner=heard.owner,
            queue_wait=heard.wait,
            awaits_certificate=scaled is None and self._cache.awaits_certificate,
            scaler_certificate=self._cache.scaler_certificate or certificate_in(scaled),
        )

    def _register(self, key: Key, thing: Object | None = None, context: Context | None = None) -> None:
        if key.kind is not AGENT_FLEET:
            return
        queue, born = None, ""
        if thing is not None and context is not None:
            queue, born = queue_of(thing, context), thing["metadata"].get("creationTimestamp", "")
        pods = [*self._workers(key), *(maker["spec"]["template"] for maker in self._makers(key))]
        self._queued(key, queue, born, frozenset(filter(None, map(_queue_in, pods))))

    def _makers(self, fleet: Key) -> list[Object]:
        """The live Deployment and StatefulSet of the fleet's name."""
        found = (self._cache.get(kind, fleet.namespace, fleet.name) for kind in (DEPLOYMENT, STATEFUL_SET))
        return [each for each in found if each is not None]

    def _workers(self, fleet: Key) -> list[Object]:
        """The pods of workers of that fleet that have not ended."""
        pods = self._cache.pods(fleet.namespace, frozenset({fleet.name}))
        return [pod for pod in pods if is_alive(pod) and is_worker(pod, fleet.name)]


def _queue_in(pod: Object) -> str:
    """The name of the queue on which a pod, or those of a template, work; "" if on none."""
    return told(pod, "AGENT_QUEUE").rpartition("/")[2]


def _unless_changed(wanted: Object, live: Object | None) -> Object:
    """What is held is the number that there was: if that is another by now, this may not be."""
    if live is None or said_by(wanted) != Says.HELD:
        return wanted
    revision = live["metadata"]["resourceVersion"]
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": revision}}


def _undone(thing: Object) -> Object:
    """The object as if its newest generation were not known: it has not been acted on."""
    known = (thing.get("status") or {}).get("observedGeneration", 0)
    return {**thing, "metadata": {**thing["metadata"], "generation": known}}


def _key(thing: Object) -> Key:
    return Key(kind_of(thing["apiVersion"], thing["kind"]), *key_of(thing))
