"""Why something is not delivered, in order of importance. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from libs.errors import ShardRequiredError, StaleShardError

from .work import Item, QueueStats, Shard, State

REMEMBERED = 60.0  # seconds for which a claim that was refused is told

Obstacle = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Refused:
    """The last claim of a queue that was refused for its shard, or for having none."""

    shard: Shard | None
    ago: float  # seconds


def obstacles(
    stats: QueueStats,
    item: Item | None,
    ahead: tuple[str, State] | None,
    parked: int,
    shards: Set[int | None] = frozenset(),
    refused: Refused | None = None,
) -> list[Obstacle]:
    """What stands in the way of an item, or of the queue when there is none. Empty: nothing does.
    `ahead`: the head of a blocked item's ordering key. `parked`: claims that wait here, and `shards` those
    that they are of. `refused` is left out when it is long ago, or would be accepted now.
    """
    found: list[Obstacle] = []
    if item is not None and (own := _of_item(item, ahead)):
        found.append(own)
        if item.state.settled or item.state is State.LEASED:
            return found
    if stats.paused:
        found.append(("PAUSED", "the queue is paused; `agentctl queues resume` ends that"))
    if item is None and not stats.ready:
        found.append(_of_empty_queue(stats))
    refusal = refused and _of_claims(stats, refused)
    if refusal:
        found.append(refusal)
    shard = item.shard if item is not None and item.state is State.READY else None
    if shard is not None and shard not in shards:
        found.append(
            (
                "SHARD_IDLE",
                f"no claim of shard {shard} is parked at this replica; does the worker of that shard run,"
                " and is it not busy?",
            )
        )
    elif stats.ready and not parked and not refusal:
        found.append(
            (
                "NO_WORKER_POLLING",
                "no claim is parked at this replica; are workers running, and not all busy?",
            )
        )
    return found


def _of_item(item: Item, ahead: tuple[str, State] | None) -> Obstacle | None:
    match item.state:
        case State.DELAYED:
            return (
                "DELAYED",
                f"ready in {(item.ready_in_ms or 0) / 1000:.1f} s ({item.attempt} attempts so far)",
            )
        case State.BLOCKED if ahead is not None and ahead[1] is State.DEAD:
            return (
                "ORDERING_KEY_HALTED",
                f"item {ahead[0]}, before it in key {item.ordering_key!r}, is dead; redrive or purge it",
            )
        case State.BLOCKED:
            head = f"item {ahead[0]} ({ahead[1].name})" if ahead else "another item"
            return "ORDERING_KEY_BUSY", f"{head} is before it in key {item.ordering_key!r}"
        case State.LEASED:
            left = (item.lease_expires_in_ms or 0) / 1000
            return "LEASED", f"{item.holder} holds it, for {left:.1f} s more unless renewed"
        case State.SUCCEEDED | State.CANCELED:
            return "SETTLED", f"it is {item.state.name}"
        case State.DEAD:
            cause = item.dead_cause.name if item.dead_cause else "unknown"
            return "DEAD", f"it is in the dead letters (cause {cause}); redrive or purge it"
    return None


def _of_claims(stats: QueueStats, refused: Refused) -> Obstacle | None:
    if refused.ago > REMEMBERED:
        return None
    try:
        stats.policy.shards.check(stats.name, refused.shard)
    except (StaleShardError, ShardRequiredError) as error:
        return "CLAIMS_REFUSED", f"{error.reason}: {error} (the last was refused {refused.ago:.0f} s ago)"
    return None


def _of_empty_queue(stats: QueueStats) -> Obstacle:
    if stats.backlog:
        waiting = f"{stats.delayed} delayed, {stats.blocked} blocked, {stats.leased} leased"
        return "NOTHING_READY", f"no item is ready: {waiting}"
    return "EMPTY", "the queue has no unsettled item"
