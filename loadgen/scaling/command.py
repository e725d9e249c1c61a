"""`agentctl-loadgen scaling`: scalers with many fleets, fleets that wake up, fleets under a burst."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import print_table, write_csv

if TYPE_CHECKING:
    from .burst import Found as Burst
    from .crowd import Found
    from .moments import Row
    from .site import Cluster


_KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", exists=True, dir_okay=False, help="Measure this Kubernetes.")
]
_CoordinationOption = Annotated[
    str, typer.Option("--coordination", metavar="HOST:PORT", help="Of the Kubernetes, forwarded to.")
]
_ScalerOption = Annotated[
    str, typer.Option("--scaler", metavar="HOST:PORT", help="Of the Kubernetes, forwarded to.")
]
_TlsDirOption = Annotated[
    Path | None,
    typer.Option("--tls-dir", exists=True, file_okay=False, help="Certificate of its administrator."),
]
_StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", exists=True, file_okay=False, help="Measure the plane that runs here, not one of ours."
    ),
]
_CsvOption = Annotated[Path | None, typer.Option("--csv", dir_okay=False, help="Write the rows here.")]
_NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="Of the fleet.")]


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the commands."""
    scaling = typer.Typer(no_args_is_help=True)
    app.add_typer(scaling, name="scaling", help="Scaling by demand: the scaler, waking up, a burst.")

    @scaling.command()
    def scaler(
        objects: Annotated[int, typer.Option(min=1, help="ScaledObjects, and as many queues.")] = 1000,
        changes: Annotated[
            str, typer.Option(help="Queues a second that turn active or inactive, comma separated.")
        ] = "10,100",
        seconds: Annotated[float, typer.Option(min=1, help="Of each step.")] = 30,
        folder: Annotated[Path | None, typer.Option(help="For what the servers write.")] = None,
        csv: _CsvOption = None,
    ) -> None:
        """One scaler, one coordination, and KEDA's side of so many ScaledObjects on one connection.

        Each has its two streams open; then the HPAs ask for each its metric every 15 s; then queues change
        too. A push is timed from the answer of the Submit or Ack that changed the queue to the stream's
        message, 0 if that was first. SCALER_* of the environment are the scaler's.
        """
        from .crowd import Plan, measure

        rates = [float(each) for each in changes.split(",") if each]
        found = asyncio.run(measure(Plan(objects, rates, seconds, environment, folder), _say))
        _print(objects, found)
        write_csv(found.steps, csv)

    @scaling.command()
    def wake(
        runs: Annotated[int, typer.Option(min=1, help="Beside one that is not counted.")] = 20,
        poll: Annotated[
            str,
            typer.Option(help="The same by a poll each so many seconds, comma separated, beside the push."),
        ] = "",
        namespace: _NamespaceOption = "demo",
        patience: Annotated[float, typer.Option(min=1, help="Seconds until a run has failed.")] = 120,
        state_dir: _StateDirOption = None,
        kubeconfig: _KubeconfigOption = None,
        coordination: _CoordinationOption = "",
        scaler: _ScalerOption = "",
        tls_dir: _TlsDirOption = None,
        csv: _CsvOption = None,
    ) -> None:
        """A fleet of no agents gets an item, again and again: how long until it is done, step by step.

        submit: accepted. push: the scaler's stream says active. scale: the Deployment wants an agent. pod: it
        is there. start: it runs. identity: it has its certificate, by its log. claim: it has the item. work:
        the item is done. own is the control plane's share; see docs/loadgen.md.
        """
        from .wake import Plan, measure

        where = _cluster(kubeconfig, coordination, scaler, tls_dir)
        found: list[Row] = []
        with _home(where, state_dir, environment) as site:
            for seconds in (None, *(float(each) for each in poll.split(",") if each)):
                found += asyncio.run(measure(Plan(namespace, runs, patience, seconds), site, _say))
        _print_wakes(found)
        write_csv(found, csv)

    @scaling.command()
    def burst(
        items: Annotated[int, typer.Option(min=1, help="Submitted at once.")] = 5000,
        most: Annotated[int, typer.Option("--max", min=1, help="Agents.")] = 50,
        slots: Annotated[int, typer.Option(min=1, help="Items that an agent works on at a time.")] = 4,
        cooldown: Annotated[int, typer.Option(min=0, help="Of the fleet, in seconds.")] = 5,
        namespace: _NamespaceOption = "demo",
        patience: Annotated[float, typer.Option(min=1, help="Seconds until it has failed.")] = 900,
        state_dir: _StateDirOption = None,
        kubeconfig: _KubeconfigOption = None,
        coordination: _CoordinationOption = "",
        scaler: _ScalerOption = "",
        tls_dir: _TlsDirOption = None,
        csv: _CsvOption = None,
    ) -> None:
        """A fleet of no agents gets many items at once, works them off, and is gone again.

        Each item has to be done once and in its first attempt; else the command ends with 1. For slower work
        start it with PROVIDER_LATENCY=500ms, for instance; that is for a plane of its own.
        """
        from .burst import Plan, measure

        where = _cluster(kubeconfig, coordination, scaler, tls_dir)
        with _home(where, state_dir, environment) as site:
            plan = Plan(namespace, items, most, slots, cooldown, patience)
            found = asyncio.run(measure(plan, site, _say))
        _print_burst(found)
        write_csv(found.points, csv)
        if not found.books.balanced:
            raise typer.Exit(1)


def _cluster(kubeconfig: Path | None, coordination: str, scaler: str, tls_dir: Path | None) -> Cluster | None:
    from .site import Cluster

    if kubeconfig is None:
        return None
    if not (coordination and scaler and tls_dir):
        raise typer.BadParameter("--kubeconfig needs --coordination, --scaler and --tls-dir")
    return Cluster(kubeconfig, coordination, scaler, tls_dir)


@contextmanager
def _home(
    cluster: Cluster | None, state_dir: Path | None, environment: Mapping[str, str]
) -> Iterator[Cluster | Mapping[str, str]]:
    from ..management.home import plane

    if cluster:
        yield cluster
        return
    with plane(state_dir, environment) as endpoints:
        yield endpoints


def _print_wakes(found: Sequence[Row]) -> None:
    from .moments import FIGURES, cells

    title = (
        f"submit → done by a fleet that was asleep: ms, median (worst); {os.cpu_count()} cores for all;"
        f" load {os.getloadavg()[0]:.2f} at the end"
    )
    rows = []
    for by in dict.fromkeys(row.by for row in found):
        these = [row for row in found if row.by == by]
        rows.append([by, str(len(these)), *cells(these)])
    print_table(title, ["by", "runs", *FIGURES], rows)


def _print_burst(found: Burst) -> None:
    books, peak = found.books, found.peak
    print_table(
        f"{books.submitted} items, {os.cpu_count()} cores for all",
        ["seconds", "ready", "leased", "replicas", "pods"],
        [
            [f"{each.seconds:.1f}", str(each.ready), str(each.leased), str(each.replicas), str(each.pods)]
            for each in found.points
        ],
    )
    typer.echo(
        f"all submitted after {found.submitted_seconds:.1f} s,"
        f" most pods {peak.pods} after {peak.seconds:.1f} s,"
        f" all done after {found.drained_seconds:.1f} s, no pod after {found.gone_seconds:.1f} s"
    )
    typer.echo(
        f"done {books.done}, failed {books.failed}, lost {books.lost}, twice {books.twice},"
        f" not in the first attempt {books.retried}"
    )


def _print(objects: int, found: Found) -> None:
    title = (
        f"{objects} ScaledObjects on one scaler, {os.cpu_count()} cores for it, coordination and the caller;"
        f" load {os.getloadavg()[0]:.2f} at the end; all streams open and answered"
        f" after {found.connect_seconds:.2f} s"
    )
    columns = ("load", "scaler mCPU", "coord. mCPU", "RSS MiB", "pushes/s", "changes/s")
    milliseconds = ("push p50 ms", "push p99 ms", "GetMetrics p50 ms", "GetMetrics p99 ms")
    rows = [
        [
            step.load,
            f"{step.scaler_millicores:.1f}",
            f"{step.coordination_millicores:.1f}",
            f"{step.rss_mib:.1f}",
            f"{step.pushes_per_second:.1f}",
            f"{step.changes_per_second:.1f}",
            *(_cell(each) for each in (step.push_p50_ms, step.push_p99_ms, step.ask_p50_ms, step.ask_p99_ms)),
        ]
        for step in found.steps
    ]
    print_table(title, [*columns, *milliseconds], rows)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _say(what: str) -> None:
    typer.echo(what, err=True)
