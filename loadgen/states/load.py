"""The rows of the bars that are plain load: steps of the ladder, one after the other, in one session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..bars import BARS, Judgement, judge
from ..row import PERCENTS, Row
from ..server import Engine
from ..sweep import Ladder, climb
from ..tally import Client, Mode, Step
from .line import Line
from .place import Place

_QUIET = 0.15  # cores that the operating system may take


@dataclass(frozen=True)
class Sizes:
    """Seconds of each step before it is measured, and those that are."""

    warmup: float
    duration: float


FULL = Sizes(warmup=1.5, duration=8.0)
QUICK = Sizes(warmup=0.3, duration=1.0)


def measure(place: Place, engines: Sequence[Engine], sizes: Sizes, client: Client) -> Iterator[Line]:
    """Every store in turn: alone, many, with claim_next, a connection each, the library, batches."""
    rows: list[Row] = []
    for engine in engines:
        ladders = [_ladder(sizes, client, Mode.SINGLE, 1, 256)]
        if engine is Engine.MEMORY:
            ladders += [
                _ladder(sizes, client, Mode.SINGLE, 256, claim_next=True),
                _ladder(sizes, client, Mode.SINGLE, 256, connections=None),
            ]
        ladders += [_ladder(sizes, client, Mode.LIBRARY, 256), _ladder(sizes, client, Mode.BATCH, 16)]
        with place.server(engine) as (target, server):
            for ladder in ladders:
                control = 0.0
                for row in climb(ladder, engine.value, target, server, _silent):
                    rows.append(row)
                    if row.step.mode is Mode.CHECK:
                        control = row.rpcs_per_second or 0
                        continue
                    yield line_of(row, rows, control)


def fronts(place: Place, sizes: Sizes, client: Client) -> Iterator[Line]:
    """What an RPC costs the server behind each front, with the doorway on; one item an RPC, in memory."""
    for front in ("h2corn", "grpcio"):
        with place.server(Engine.MEMORY, AGENTCTL_FRONT=front) as (target, server):
            rows = list(climb(_ladder(sizes, client, Mode.SINGLE, 256), "memory", target, server, _silent))
        check, row = rows
        cost = row.server_us_per_rpc or 0
        bar = next(bar.server_us_per_rpc for bar in BARS if bar.server_us_per_rpc is not None)
        yield Line(
            name=f"front {front}: {name_of(row.step)}",
            store="memory",
            figure=f"{cost:.1f} µs of server CPU per RPC; {_figure(row)}",
            limits=(Judgement(f"≤ {bar:g} µs/RPC", cost <= bar),) if front == "h2corn" else (),
            cost=_cost(row),
            control=_control(check.rpcs_per_second or 0),
            notes=(f"a health check: {check.server_us_per_rpc or 0:.1f} µs of server CPU", *_disturbed(row)),
            violations=tuple(line for each in rows for line in each.violations),
            values={"server_us_per_rpc": cost, "check_us_per_rpc": check.server_us_per_rpc},
        )


def line_of(row: Row, rows: Sequence[Row], control: float) -> Line:
    """A step as a line of the table; `rows` has those that it is compared with, `control` the rate of
    health checks beside it.
    """
    goals = [bar.goal for bar in BARS if bar.goal and bar.applies(row)]
    goal = Judgement(f"≥ {max(goals):,.0f}/s", row.cycles_per_second >= max(goals)) if goals else None
    return Line(
        name=name_of(row.step),
        store=row.store,
        figure=_figure(row),
        limits=tuple(Judgement(each.text.partition(" (goal")[0], each.met) for each in judge(row, rows)),
        goal=goal,
        cost=_cost(row),
        control=_control(control),
        notes=_disturbed(row),
        violations=tuple(row.violations),
        values={
            "cycles_per_second": row.cycles_per_second,
            "rpcs_per_second": row.rpcs_per_second,
            "latencies_ms": row.latencies_ms,
            "server_us_per_rpc": row.server_us_per_rpc,
            "server_us_per_item": row.server_us_per_cycle,
            "database_us_per_item": row.database_us_per_cycle,
            "generator_us_per_rpc": row.generator_us_per_rpc,
            "others_cores": row.others_cores,
            "control_per_second": control,
        },
    )


def name_of(step: Step) -> str:
    """The load, as the bars say it."""
    lean = "lean " if step.client is Client.LEAN else ""
    clients = f"{step.clients} {lean}client{'s' if step.clients > 1 else ''}"
    match step.mode:
        case Mode.BATCH:
            return f"batch {step.batch} x {clients}"
        case Mode.LIBRARY:
            return f"client library, {step.clients} clients in {step.processes} processes"
    following = ", claim_next" if step.claim_next else ""
    connections = f"{step.connections} connection{'s' if step.connections > 1 else ''}"
    return f"one item per RPC, {clients}, {connections}{following}"


def _ladder(
    sizes: Sizes,
    client: Client,
    mode: Mode,
    *clients: int,
    connections: int | None = 16,
    claim_next: bool = False,
) -> Ladder:
    template = Step(
        mode=Mode.CHECK,
        clients=1,
        connections=1,
        processes=1,
        warmup=sizes.warmup,
        duration=sizes.duration,
        claim_next=claim_next,
        client=client,
    )
    return Ladder([mode], clients, connections, None, 100, template)


def _figure(row: Row) -> str:
    worst = [max(values) for values in zip(*row.latencies_ms.values(), strict=True)]
    latency = dict(zip(PERCENTS, worst, strict=True)) if worst else dict.fromkeys(PERCENTS, float("nan"))
    what = "a call" if row.step.mode is Mode.LIBRARY else "an RPC"
    return f"{row.cycles_per_second:,.0f}/s, p50 {latency[50]:.3g} ms, p99 {latency[99]:.3g} ms {what}"


def _cost(row: Row) -> str:
    """CPU at the server, of an RPC and of an item; PostgreSQL's of an item."""
    database = "" if row.database_us_per_cycle is None else f" + {row.database_us_per_cycle:.0f}"
    return f"{row.server_us_per_rpc or 0:.0f} µs/RPC, {row.server_us_per_cycle or 0:.0f}{database} µs/item"


def _disturbed(row: Row) -> tuple[str, ...]:
    """Said of a figure that is a lower bound."""
    others = row.others_cores or 0
    return (f"disturbed: something else kept {others:.1f} cores busy",) if others > _QUIET else ()


def _control(rate: float) -> str:
    return f"{rate:,.0f} checks/s"


def _silent(*_: object) -> None:
    """A line says enough."""
