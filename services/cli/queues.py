"""`agentctl queues`: what queues there are, their rules, and their pause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from . import durations
from .choices import OnDeadHead, OnExpiry
from .output import Exit, FailedError, emit, fields, show
from .session import Session, command
from .work import QueueArgument

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from agentctl.coordination.v1 import work_pb2

app = typer.Typer(no_args_is_help=True, help="Queues: list, configure, pause, resume.")

_COLUMNS = (
    "QUEUE",
    ">READY",
    ">DELAYED",
    ">BLOCKED",
    ">LEASED",
    ">DEAD",
    ">OLDEST",
    ">SETTLED",
    ">PER S",
    "STATE",
)
_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024 * 1024}


def _duration(help_: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(parser=durations.option, metavar="DURATION", help=help_)
    return option


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,10})([a-z]*)", text.lower())
    if not match or match[2] not in _SIZES:
        raise typer.BadParameter(f"{text!r} is not a size such as 65536, 64KiB or 1MiB")
    return int(match[1]) * _SIZES[match[2]]


@command(app, "list")
async def list_queues(
    session: Session,
    namespace: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE]", help="Default: all that you may see.")
    ] = None,
) -> None:
    """List queues with their numbers.

    Example: agentctl queues list demo -o json | jq '.queues[] | {name, ready_count}'
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    answer = await session.stub.GetQueues(pb.GetQueuesRequest(namespace=namespace or ""))
    if session.json:
        emit(answer)
        return
    _show(answer.queues)


@command(app, "configure")
async def configure(
    session: Session,
    queue: QueueArgument,
    lease: Annotated[timedelta | None, _duration("Lease when a worker asks for none.")] = None,
    min_lease: Annotated[timedelta | None, _duration("Shortest lease.")] = None,
    max_lease: Annotated[timedelta | None, _duration("Longest lease.")] = None,
    max_hold: Annotated[timedelta | None, _duration("Renewals end so long after the grant.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Attempts before an item is dead.")
    ] = None,
    backoff: Annotated[timedelta | None, _duration("Wait before the second attempt.")] = None,
    backoff_max: Annotated[timedelta | None, _duration("Longest wait between attempts.")] = None,
    backoff_multiplier: Annotated[
        float | None, typer.Option(min=1, max=10, help="Growth per attempt.")
    ] = None,
    on_expiry: Annotated[OnExpiry | None, typer.Option(help="When a lease ends unsettled.")] = None,
    on_dead_head: Annotated[
        OnDeadHead | None, typer.Option(help="When the head of an ordering key dies.")
    ] = None,
    dedupe_window: Annotated[
        timedelta | None, _duration("How long a dedupe key is held after its item settled.")
    ] = None,
    keep_settled: Annotated[timedelta | None, _duration("How long results are kept.")] = None,
    keep_dead: Annotated[timedelta | None, _duration("How long dead letters are kept.")] = None,
    max_backlog: Annotated[
        int | None, typer.Option(min=1, help="Unsettled items beyond which it is full.")
    ] = None,
    max_payload: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Largest payload.")
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Agents that may work here beside the one of the queue's own name. May be repeated."
        ),
    ] = None,
) -> None:
    """Set rules of a queue, making it if it is new. What is not named stays. Prints all rules in force.

    \b
    Examples:
      agentctl queues configure demo/summarize --lease 30s --max-attempts 5 --on-expiry retry
      agentctl queues configure demo/summarize --backoff 2s --backoff-max 5m --keep-settled 7d
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb
    from agentctl.coordination.v1 import work_pb2

    policy = work_pb2.QueuePolicy()
    lengths = {
        "default_lease": lease, "min_lease": min_lease, "max_lease": max_lease, "max_hold": max_hold,
        "dedupe_window": dedupe_window, "settled_retention": keep_settled, "dead_retention": keep_dead,
    }  # fmt: skip
    _set_lengths(policy, lengths)
    numbers = {"max_attempts": max_attempts, "max_backlog": max_backlog, "max_payload_bytes": max_payload}
    for name, number in numbers.items():
        if number is not None:
            setattr(policy, name, number)
    if backoff is not None or backoff_max is not None or backoff_multiplier is not None:
        policy.backoff.multiplier = backoff_multiplier or 0
        _set_lengths(policy.backoff, {"initial": backoff, "maximum": backoff_max})
    if on_expiry:
        policy.on_expiry = work_pb2.OnExpiry.Value(f"ON_EXPIRY_{on_expiry.name}")
    if on_dead_head:
        policy.on_dead_head = work_pb2.OnDeadHead.Value(f"ON_DEAD_HEAD_{on_dead_head.name}")
    if agent:
        policy.agents.names.extend(agent)
    if not policy.ListFields():
        raise FailedError("no rule named: see `agentctl queues configure --help`", Exit.USAGE)
    answer = await session.stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue, policy=policy))
    if session.json:
        emit(answer)
    else:
        _describe(answer.queue)


@command(app, "show")
async def show_queue(session: Session, queue: QueueArgument) -> None:
    """Show one queue: its numbers and every rule in force.

    Example: agentctl queues show demo/summarize
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    answer = await session.stub.GetQueues(pb.GetQueuesRequest(queues=[queue]))
    if not answer.queues:
        raise FailedError(
            f"no queue {queue}: queues are made by `work submit` or `queues configure`", Exit.NOT_FOUND
        )
    if session.json:
        emit(answer)
        return
    _show(answer.queues)
    typer.echo()
    _describe(answer.queues[0])


@command(app, "pause")
async def pause(session: Session, queue: QueueArgument) -> None:
    """Stop handing out work. Once this has answered nothing more is granted; what is held goes on.

    Example: agentctl queues pause demo/summarize
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    answer = await session.stub.PauseQueue(pb.PauseQueueRequest(queue=queue))
    _said(session, answer, f"{queue}: paused; {answer.queue.leased_count} items are still held")


@command(app, "resume")
async def resume(session: Session, queue: QueueArgument) -> None:
    """Hand out work again.

    Example: agentctl queues resume demo/summarize
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    answer = await session.stub.ResumeQueue(pb.ResumeQueueRequest(queue=queue))
    _said(session, answer, f"{queue}: resumed; {answer.queue.ready_count} items are ready")


def _said(session: Session, answer: Message, line: str) -> None:
    if session.json:
        emit(answer)
    else:
        typer.echo(line)


def _set_lengths(message: Message, lengths: dict[str, timedelta | None]) -> None:
    for name, length in lengths.items():
        if length is not None:
            getattr(message, name).FromTimedelta(length)


def _show(queues: Sequence[work_pb2.Queue]) -> None:
    """A table of queues, with their shards if one has some."""
    if any(queue.policy.shards.count for queue in queues):
        show((*_COLUMNS, "SHARDS"), ([*_row(queue), _shards(queue)] for queue in queues))
    else:
        show(_COLUMNS, map(_row, queues))


def _shards(queue: work_pb2.Queue) -> str:
    shards = queue.policy.shards
    return f"{shards.count} (epoch {shards.epoch})" if shards.count else ""


def _row(queue: work_pb2.Queue) -> list[object]:
    oldest = queue.oldest_ready_age.ToTimedelta().total_seconds()
    return [
        queue.name, queue.ready_count, queue.delayed_count, queue.blocked_count, queue.leased_count,
        queue.dead_count, durations.span(oldest) if queue.HasField("oldest_ready_age") else "-",
        queue.settled_total, f"{queue.settled_per_second:.1f}", standing(queue),
    ]  # fmt: skip


def standing(queue: work_pb2.Queue) -> str:
    """Whether work flows, in a word."""
    if queue.paused:
        return "paused"
    if queue.leased_count:
        return "working"
    if queue.ready_count:
        return "waiting" if queue.parked_claims_count else "no worker"
    return "idle"


def _describe(queue: work_pb2.Queue) -> None:
    from agentctl.coordination.v1 import work_pb2

    policy = queue.policy

    def length(name: str) -> str:
        return durations.span(getattr(policy, name).ToTimedelta().total_seconds())

    waits = [
        durations.span(each.ToTimedelta().total_seconds())
        for each in (policy.backoff.initial, policy.backoff.maximum)
    ]
    on_expiry = work_pb2.OnExpiry.Name(policy.on_expiry).removeprefix("ON_EXPIRY_").lower()
    on_dead_head = work_pb2.OnDeadHead.Name(policy.on_dead_head).removeprefix("ON_DEAD_HEAD_").lower()
    fields([
        ("queue", queue.name), ("paused", "yes" if queue.paused else "no"),
        ("lease", f"{length('default_lease')} (asked for: {length('min_lease')} to {length('max_lease')})"),
        ("max hold", length("max_hold")), ("max attempts", policy.max_attempts),
        ("backoff", f"{waits[0]} to {waits[1]}, times {policy.backoff.multiplier:g}"),
        ("on expiry", on_expiry), ("on dead head", on_dead_head), ("dedupe window", length("dedupe_window")),
        ("keep settled", length("settled_retention")), ("keep dead", length("dead_retention")),
        ("max backlog", policy.max_backlog), ("max payload", f"{policy.max_payload_bytes} bytes"),
        ("agents", ", ".join(policy.agents.names)), ("shards", _shards(queue)),
    ])  # fmt: skip
