"""One measurement: a fleet of so many agents, from its manifest to ready, and away again."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence

from libs.cluster.kinds import AGENT_FLEET, DEPLOYMENT, POD, Kind
from libs.errors import NotFoundError

from .timeline import Object, Timeline
from .world import World, kind_of_object

_WATCHED = (AGENT_FLEET, DEPLOYMENT, POD)
_GONE_LOOK_SECONDS = 0.5


async def prepare(world: World, manifests: Sequence[Object]) -> Object:
    """Applies all but the fleet, which it returns."""
    fleets = [thing for thing in manifests if thing["kind"] == AGENT_FLEET.name]
    if len(fleets) != 1:
        raise ValueError(f"{len(fleets)} AgentFleets instead of one in the manifests")
    for thing in manifests:
        if thing is not fleets[0]:
            await world.apply(thing)
    return fleets[0]


async def measure(world: World, fleet: Object, agents: int, round_: int, patience: float) -> Timeline:
    """Applies a copy of the fleet with so many agents, follows it until all is ready, and deletes it.
    TimeoutError if it is not ready within `patience` seconds."""
    thing = copy.deepcopy(fleet)
    name = f"provision-{agents}-{round_}"
    thing["metadata"]["name"] = name
    scaling = thing["spec"].setdefault("scaling", {})
    scaling.update(minReplicas=agents, maxReplicas=max(agents, scaling.get("maxReplicas", agents)))
    namespace = thing["metadata"]["namespace"]
    since = {kind: await world.revision(kind, namespace) for kind in _WATCHED}
    timeline, done = Timeline(name, agents), asyncio.Event()
    begun = 0.0

    async def follow(kind: Kind) -> None:
        async for changed in world.watch(kind, namespace, since[kind]):
            timeline.see(kind.name, changed, time.monotonic() - begun)
            if timeline.done:
                done.set()

    watches = [asyncio.create_task(follow(kind)) for kind in _WATCHED]
    waiting = asyncio.create_task(done.wait())
    try:
        await asyncio.sleep(0.2)  # the watches are open well before the apply: no moment is late for that
        begun = time.monotonic()
        await world.apply(thing)
        timeline.at["applied"] = time.monotonic() - begun
        async with asyncio.timeout(patience):
            ended, _ = await asyncio.wait((*watches, waiting), return_when=asyncio.FIRST_COMPLETED)
        if waiting not in ended:
            raise next(filter(None, (watch.exception() for watch in ended)), EOFError("a watch ended"))
    finally:
        for task in (*watches, waiting):
            task.cancel()
        await asyncio.gather(*watches, waiting, return_exceptions=True)
        await _remove(world, thing, patience)
    return timeline


async def _remove(world: World, thing: Object, patience: float) -> None:
    namespace, name = thing["metadata"]["namespace"], thing["metadata"]["name"]
    try:
        await world.delete(kind_of_object(thing), namespace, name)
    except NotFoundError:
        return
    async with asyncio.timeout(patience):
        while await world.count(POD, namespace, f"agentctl.dev/agent={name}"):  # noqa: ASYNC110
            await asyncio.sleep(_GONE_LOOK_SECONDS)
