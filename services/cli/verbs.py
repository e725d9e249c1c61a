"""`agentctl drain | lame-duck | cancel | pause | resume | status`: people and the agents that run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from . import durations
from .management import Management, Order, Subject, Until, Way, open_management, why
from .objects import ContextOption, KubeconfigOption, NamespaceOption, which_object
from .output import Exit, FailedError, Format, emit, one_line, one_line_errors, show
from .session import FormatOption, Settings, StateDirOption, TlsDirOption

if TYPE_CHECKING:
    from agentctl.agent.v1 import run_pb2
    from agentctl.management.v1 import management_service_pb2 as pb

_Answer = TypeVar("_Answer")
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(hours=1)


def _some(text: str) -> str:
    """What an unset variable leaves behind does not mean all."""
    if not text:
        raise typer.BadParameter("it is empty")
    return text


NameArgument = Annotated[
    str, typer.Argument(parser=_some, metavar="NAME", help="An Agent; or agent/NAME, fleet/NAME.")
]
FleetOption = Annotated[bool, typer.Option("--fleet", help="NAME is an AgentFleet: all of its pods.")]
PodOption = Annotated[
    str | None,
    typer.Option("--pod", parser=_some, metavar="POD", show_default=False, help="Only this pod of it."),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit line.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything, ask no agent.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="The same as --until finished.")]
UntilOption = Annotated[
    Until | None,
    typer.Option("--until", help="How far it has to come.  [default: accepted]", show_default=False),
]
DeadlineOption = Annotated[
    timedelta, typer.Option(parser=durations.option, metavar="DURATION", help="For all of it, 1s to 1h.")
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", parser=_some, metavar="ID", show_default=False,
                 help="Only this run, wherever it is. `agentctl status` names them."),
]  # fmt: skip
UndoOption = Annotated[bool, typer.Option("--undo", help="Be ready again.")]
GraceOption = Annotated[
    timedelta | None,
    typer.Option(parser=durations.option, metavar="DURATION", show_default=False,
                 help="How long agents may finish. Default, and most: each its own drain timeout."),
]  # fmt: skip
ManagementOption = Annotated[
    str | None,
    typer.Option("--address", parser=_some, metavar="HOST:PORT", rich_help_panel="Connection",
                 show_default=False,
                 help="A ManagementService. Default: of the plane that runs here."),
]  # fmt: skip


@dataclass(frozen=True)
class _Verb:
    """How a verb is spoken of, and what only it has."""

    name: str
    about: str
    own: dict[str, tuple[object, object]] = field(default_factory=dict)


_RUN: dict[str, tuple[object, object]] = {"run": (RunOption, None)}
_VERBS = (
    _Verb(
        "drain",
        """End agents: they finish in time what they can, give the rest back and exit with 0.

        Those that are to run always are started again: to have fewer, scale or delete.

        Example: agentctl drain fleet/summarize -n demo --wait --deadline 2m
        """,
        own={"grace": (GraceOption, None)},
    ),
    _Verb(
        "lame-duck",
        """Make agents not ready, so that they begin nothing new; what they have begun goes on. Or --undo it.

        Example: agentctl lame-duck fleet/summarize -n demo --pod summarize-5d9c-x7k2p
        """,
        own={"undo": (UndoOption, False)},
    ),
    _Verb(
        "cancel",
        """End runs at once: one, or all of an agent, a fleet or a pod.

        Example: agentctl cancel fleet/summarize -n demo --run 0197f0c2-…
        """,
        own=_RUN,
    ),
    _Verb(
        "pause",
        """Hold runs at their next step; of whole agents, begin nothing new either. `resume` takes it back.

        Example: agentctl pause fleet/summarize -n demo --until in-effect
        """,
        own=_RUN,
    ),
    _Verb(
        "resume",
        """Let go on what `pause` holds.

        Example: agentctl resume fleet/summarize -n demo
        """,
        own=_RUN,
    ),
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for verb in _VERBS:
        _register(app, verb)
    app.command("status")(status)


def _register(app: typer.Typer, verb: _Verb) -> None:
    def run(**given: Any) -> None:
        with one_line_errors():
            _act(verb, **given)

    parameters = _parameters(verb)
    run.__doc__ = verb.about
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(verb.name)(run)


def _parameters(verb: _Verb) -> list[inspect.Parameter]:
    options: dict[str, tuple[object, object]] = {
        "ctx": (typer.Context, inspect.Parameter.empty),
        "name": (NameArgument, inspect.Parameter.empty),
        "namespace": (NamespaceOption, "default"),
        "fleet": (FleetOption, False),
        "pod": (PodOption, None),
        **verb.own,
        "reason": (ReasonOption, ""),
        "dry_run": (DryRunOption, False),
        "wait": (WaitOption, False),
        "until": (UntilOption, None),
        "deadline": (DeadlineOption, "30s"),
        "format_": (FormatOption, Format.TABLE),
        "address": (ManagementOption, None),
        "kubeconfig": (KubeconfigOption, None),
        "context": (ContextOption, ""),
        "tls_dir": (TlsDirOption, None),
        "state_dir": (StateDirOption, None),
    }
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, annotation=annotation, default=default)
        for name, (annotation, default) in options.items()
    ]


def _act(
    verb: _Verb,
    *,
    ctx: typer.Context,
    name: str,
    namespace: str,
    fleet: bool,
    pod: str | None,
    wait: bool,
    until: Until | None,
    deadline: timedelta,
    format_: Format,
    address: str | None,
    kubeconfig: Path | None,
    context: str,
    tls_dir: Path | None,
    state_dir: Path | None,
    **how: Any,
) -> None:
    if wait and until:
        raise FailedError("--wait is --until finished: say one of them", Exit.USAGE)
    if not _SHORTEST <= deadline <= _LONGEST:
        raise FailedError("--deadline is 1s to 1h", Exit.USAGE)
    subject = _subject(name, namespace, fleet, pod)
    order = Order(verb.name, subject, until or (Until.FINISHED if wait else Until.ACCEPTED), deadline, **how)
    connection = _Connection(ctx, address, kubeconfig, context, tls_dir, state_dir)
    answer = _asked(connection, subject, lambda management: management.do(order))
    if format_ is Format.JSON:
        emit(answer.document)
    else:
        rows = [
            [each.pod, order.words(each.stage), each.run_count or "", why(each)] for each in answer.outcomes
        ]
        if rows:
            show(["POD", "STATE", ">RUNS", "MESSAGE"], rows)
        typer.echo(one_line(answer.summary))
    if not answer.is_done:
        raise typer.Exit(Exit.FAILED)


def status(
    ctx: typer.Context,
    name: NameArgument,
    namespace: NamespaceOption = "default",
    fleet: FleetOption = False,
    pod: PodOption = None,
    format_: FormatOption = Format.TABLE,
    address: ManagementOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    tls_dir: TlsDirOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Say what agents are doing now, in their own words: ready or why not, draining, paused, their runs.

    Example: agentctl status fleet/summarize -n demo
    """
    with one_line_errors():
        subject = _subject(name, namespace, fleet, pod)
        connection = _Connection(ctx, address, kubeconfig, context, tls_dir, state_dir)
        found = _asked(connection, subject, lambda management: management.status(subject))
        if format_ is Format.JSON:
            emit(found)
        else:
            columns = ["POD", "PHASE", "READY", "STATE", ">RUNS", ">FREE", ">UP", "MESSAGE"]
            show(columns, map(_row, found.pods))
            if runs := [_run(pod, run) for pod in found.pods for run in pod.status.runs]:
                typer.echo()
                show(["RUN", "POD", "STATE", ">AGE", "ACTIVITY"], runs)


def _subject(name: str, namespace: str, fleet: bool, pod: str | None) -> Subject:
    if not namespace:
        raise FailedError("--namespace is empty", Exit.USAGE)
    if "/" not in name:
        return Subject(namespace, name, fleet, pod)
    from libs.cluster.kinds import AGENT, AGENT_FLEET

    kind, named = which_object(name, None)
    if kind not in (AGENT, AGENT_FLEET) or not named or "/" in named or (fleet and kind == AGENT):
        raise FailedError(f"{name}: whom? say agent/NAME or fleet/NAME, or NAME with --fleet", Exit.USAGE)
    return Subject(namespace, named, kind == AGENT_FLEET, pod)


@dataclass(frozen=True)
class _Connection:
    """The options that say whom to call, and as whom."""

    ctx: typer.Context
    address: str | None
    kubeconfig: Path | None
    context: str
    tls_dir: Path | None
    state_dir: Path | None

    @property
    def settings(self) -> Settings:
        settings = Settings.of(self.ctx, self.state_dir)
        return replace(settings, tls_dir=self.tls_dir or settings.tls_dir)

    @property
    def way(self) -> Way:
        """An --address before the command is meant, too; the environment's is coordination's."""
        return Way(
            self.address or self.ctx.find_root().params["address"] or "", self.kubeconfig, self.context
        )


def _asked(
    connection: _Connection, subject: Subject, ask: Callable[[Management], Awaitable[_Answer]]
) -> _Answer:
    import asyncio

    from libs.errors import NotFoundError

    async def asked() -> _Answer:
        async with open_management(connection.settings, connection.way) as management:
            try:
                return await ask(management)
            except NotFoundError as error:
                if subject.is_fleet:
                    raise
                mend = f"a fleet is named fleet/{subject.name}, its namespace by -n"
                raise NotFoundError(f"{error} ({mend})") from error

    return asyncio.run(asked())


def _row(pod: pb.PodStatus) -> list[object]:
    if not pod.HasField("status"):
        return [pod.pod, pod.phase, "", "", "", "", "", pod.error]
    said = pod.status
    paused = "pausing" if any(_state(run) == "working" for run in said.runs) else "paused"
    state = {"draining": said.draining, paused: said.paused, "lame duck": said.lame_duck}
    return [
        pod.pod,
        pod.phase,
        "yes" if said.ready else "no",
        ", ".join(word for word, is_so in state.items() if is_so),
        len(said.runs),
        said.free_slots,
        durations.span(said.uptime.ToTimedelta().total_seconds()),
        said.not_ready_reason,
    ]


def _run(pod: pb.PodStatus, run: run_pb2.Run) -> list[object]:
    age = durations.span(run.age.ToTimedelta().total_seconds())
    return [run.id, pod.pod, _state(run), age, run.activity]


def _state(run: run_pb2.Run) -> str:
    from agentctl.agent.v1 import run_pb2

    return run_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_").lower()
