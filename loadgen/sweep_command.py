"""`agentctl-loadgen sweep`: the command."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from libs.errors import MeshError

from .arrivals import Arrivals
from .channel import Target
from .child import ServerError
from .control import host, sync_rate
from .generator import GeneratorError
from .ledger import MAX_PROCESSES, MIN_PAYLOAD
from .plot import PlotError, check, draw
from .report import Report, line_of
from .server import Engine, Server
from .summary import write_csv, write_json
from .sweep import OPEN, Ladder, climb, own_server, remote
from .tally import Client, Mode, Step

_MOST_BYTES = 3 << 20  # of payload in one request
_WIDTH = 250  # columns, where nobody says how many there are


class Load(StrEnum):
    """The modes that one can ask for."""

    SINGLE = "single"
    BATCH = "batch"
    LIBRARY = "library"
    CONTENTION = "contention"
    WAKE = "wake"


class Front(StrEnum):
    """What carries the RPCs at the server."""

    H2CORN = "h2corn"
    GRPCIO = "grpcio"


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command; what it starts gets this environment."""
    app.command(context_settings={"obj": environment})(sweep)


def sweep(
    context: typer.Context,
    store: Annotated[
        list[Engine] | None,
        typer.Option(help="Start a server with this store. Repeatable; default: both."),
    ] = None,
    mode: Annotated[
        list[Load] | None,
        typer.Option(
            help="single: one item an RPC. batch: many. library: one item a call, and the client library "
            "makes the batches. contention: all claimers want the same few items. wake: claims are parked, "
            "and now and then comes an item. Repeatable; default: the first three."
        ),
    ] = None,
    clients: Annotated[
        str, typer.Option(help="The rungs: numbers of logical clients, each with one call at a time.")
    ] = "1,4,16,64,256",
    rate: Annotated[
        str,
        typer.Option(
            help="The rungs of open loops: cycles a second that are offered, whatever the server does. "
            "Instead of --clients, in single, batch and library."
        ),
    ] = "",
    arrivals: Annotated[Arrivals, typer.Option(help="Open loop: how they come.")] = Arrivals.POISSON,
    seed: Annotated[int, typer.Option(help="Open loop: the same seed, the same arrivals.")] = 1,
    in_flight: Annotated[
        int,
        typer.Option(min=1, help="Open loop: the most cycles (batches) under way; others begin late."),
    ] = 256,
    backlog: Annotated[
        int,
        typer.Option(min=0, help="Open loop: the most that may be waiting to begin; others never do."),
    ] = 10_000,
    ready: Annotated[int, typer.Option(min=1, help="Contention: items that there are.")] = 4,
    pace: Annotated[float, typer.Option(min=0.1, help="Wake: items a second.")] = 50.0,
    two_replicas: Annotated[
        bool,
        typer.Option("--two-replicas", help="PostgreSQL: a second server, at which wake parks its claims."),
    ] = False,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Items per RPC in batch mode.")] = 100,
    connections: Annotated[
        str,
        typer.Option(help="Connections that the clients share, or 'clients' for one each. Not for library."),
    ] = "16",
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_PROCESSES,
            help="Generator processes, at most one a client. Default: 2; library: 4.",
        ),
    ] = None,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds of each step before it is measured.")] = 0.5,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of each step that are measured.")] = 3.0,
    payload: Annotated[int, typer.Option(min=MIN_PAYLOAD, max=1 << 20, help="Bytes per item.")] = 128,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds. If one runs out during a step, that is a violation.")
    ] = 30.0,
    claim_next: Annotated[
        bool, typer.Option("--claim-next", help="Claim the next items in the Ack: two RPCs a cycle.")
    ] = False,
    request_ids: Annotated[
        bool, typer.Option("--request-ids", help="Make every Claim replayable, as the library does.")
    ] = False,
    client: Annotated[
        Client,
        typer.Option(
            help="What carries the calls, but those of library. grpcio: as users have it. lean: a client of "
            "our own that costs a fraction, and needs agentctl\\[load]."
        ),
    ] = Client.GRPCIO,
    front: Annotated[Front, typer.Option(help="The server's front.")] = Front.H2CORN,
    data_dir: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Where to put the servers' data.")
    ] = None,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Measure this running server instead; see --tls-dir.")
    ] = "",
    tls_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Our certificate for --address: a user's folder."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the queues that are made.")] = "load",
    csv: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a line per step here.")] = None,
    json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything here.")] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(dir_okay=False, help="Draw here, as .png or .svg. Repeatable. Needs agentctl\\[load]."),
    ] = None,
) -> None:
    """Cycles of submit, claim and ack against both stores: closed loops of 1 to 256 clients, or open loops.

    A cycle counts when its item was ACCEPTED, came back from a claim unharmed, and its ack was OK. After each
    step every item accepted must have been acked exactly once, by all processes together; the queue must be
    empty and its counters must say the same; and a sample of results must be what was acked. What is wrong
    is listed, and the exit code is 1.

    The first row of a store is the control figure: health checks through the same generator and front, the
    most RPCs that this machine can do now. Compare it, and fdatasync, before you compare anything else.

    A closed loop asks no faster than it is answered, so what would have waited is never asked (coordinated
    omission). With --rate cycles begin when they should, latencies count from then, and a server that cannot
    keep up is said to be one.

    \b
    agentctl-loadgen sweep                                                about 3 minutes
    agentctl-loadgen sweep --store memory --mode batch --clients 16
    agentctl-loadgen sweep --mode single --clients 256 --connections clients --duration 10
    agentctl-loadgen sweep --mode single --rate 500,1000,2000,4000 --plot out.png
    agentctl-loadgen sweep --mode contention --clients 16,256 --ready 4
    agentctl-loadgen sweep --mode wake --clients 16,256,1024 --pace 100 --two-replicas
    agentctl-loadgen sweep --address 127.0.0.1:7410 --tls-dir state/tls --namespace default --csv out.csv
    """
    if batch * payload > _MOST_BYTES:
        raise typer.BadParameter(f"batch * payload is {batch * payload} bytes; at most {_MOST_BYTES}")
    if bool(address) != bool(tls_dir):
        raise typer.BadParameter("--address and --tls-dir go together")
    if address and store:
        raise typer.BadParameter("--store is for servers that we start, not for --address")
    if client is Client.LEAN and find_spec("hpack") is None:
        raise typer.BadParameter("--client lean needs hpack: pip install 'agentctl[load]'")
    for picture in plot or ():
        try:
            check(picture)
        except PlotError as error:
            raise typer.BadParameter(f"--plot: {error}") from error
    ladder = Ladder(
        modes=[Mode(each) for each in mode] if mode else OPEN,
        clients=_numbers(clients, "--clients"),
        connections=None if connections == "clients" else _numbers(connections, "--connections")[0],
        processes=processes,
        batch=batch,
        namespace=namespace,
        rates=_numbers(rate, "--rate") if rate else (),
        under_way=in_flight,
        template=Step(
            mode=Mode.CHECK,
            clients=1,
            connections=1,
            processes=1,
            warmup=warmup,
            duration=duration,
            payload=payload,
            lease=lease,
            claim_next=claim_next,
            request_ids=request_ids,
            client=client,
            arrivals=arrivals,
            seed=seed,
            backlog=backlog,
            ready=ready,
            pace=pace,
        ),
    )
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    settings = {**context.obj, "AGENTCTL_FRONT": front.value}
    with ExitStack() as stack:
        report = Report(
            host(),
            sync_rate(data_dir),
            "remote" if address else front.value,
            {**ladder.settings(), "two_replicas": two_replicas},
        )
        live = stack.enter_context(Live(report, console=console, refresh_per_second=4))
        try:
            if tls_dir:
                _measure(ladder, "remote", remote(address, tls_dir), None, report, live)
            for engine in () if address else store or Engine:
                with own_server(engine, data_dir, settings, second=two_replicas) as (target, server):
                    _measure(ladder, engine.value, target, server, report, live)
        except (ServerError, GeneratorError, MeshError) as error:
            report.failure = str(error)
        report.status = ""
    if csv:
        write_csv(report, csv)
    if json:
        write_json(report, json)
    for picture in plot or () if report.rows else ():
        draw(report, picture)
    raise typer.Exit(0 if report.verified else 1)


def _measure(
    ladder: Ladder, store: str, target: Target, server: Server | None, report: Report, live: Live
) -> None:
    def progress(step: Step, cycles: int, errors: int, share: float) -> None:
        report.status = (
            f"{store} {step.mode} {step.clients} clients: {share:4.0%}, {cycles:,} cycles, {errors} errors"
        )

    for row in climb(ladder, store, target, server, progress):
        report.rows.append(row)
        if not live.console.is_terminal:
            live.console.print(line_of(row))


def _numbers(text: str, option: str) -> list[int]:
    numbers = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if not all(numbers):
        raise typer.BadParameter(f"{option}: {text!r} is not a list of positive whole numbers")
    return numbers
