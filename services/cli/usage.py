"""`agentctl usage`: what models have cost: budgets, and the calls themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .durations import span
from .objects import NamespaceOption, settings_of
from .output import Exit, FailedError, Format, emit, one_line_errors, show
from .reach import component_at
from .session import FormatOption, Settings, StateDirOption, TlsDirOption

if TYPE_CHECKING:
    from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb
    from agentctl.modelgateway.v1.modelgateway_service_pb2_grpc import ModelGatewayServiceAsyncStub

_BUDGETS = ("POOL", "PER", "NAME", "WINDOW", ">USED", ">RESERVED", ">LIMIT", "RESETS AT")
_CALLS = ("STARTED", "POOL", "ENDPOINT", "MODEL", ">IN", ">OUT", ">TOOK", ">STATUS", "ERROR", "CALLER")
_PAGE = 1000

AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", rich_help_panel="Connection", show_default=False,
                 help="A ModelGatewayService. Default: of the plane that runs here."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("usage")(usage)


def usage(
    ctx: typer.Context,
    namespace: NamespaceOption = "default",
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Only this ModelPool.")] = "",
    calls: Annotated[bool, typer.Option("--calls", help="The calls, newest first, not the budgets.")] = False,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="With --calls: only this agent or fleet.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="With --calls: how many at most.")
    ] = 100,
    format_: FormatOption = Format.TABLE,
    address: AddressOption = None,
    state_dir: StateDirOption = None,
    tls_dir: TlsDirOption = None,
) -> None:
    """Show what is used of the budgets of pools, in tokens, or the calls that used it.

    \b
    Examples:
      agentctl usage -n demo
      agentctl usage -n demo --pool openai --calls -o json | jq '.calls[] | {caller, output_tokens}'
    """
    import asyncio

    async def run(settings: Settings, where: str) -> None:
        from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb
        from agentctl.modelgateway.v1.modelgateway_service_pb2_grpc import ModelGatewayServiceStub
        from libs.mesh import MODEL_GATEWAY

        async with component_at(settings, MODEL_GATEWAY, where) as channel:
            stub = ModelGatewayServiceStub(channel)
            if calls:
                request = pb.ListCallsRequest(namespace=namespace, pool=pool, agent=agent)
                found = await _listed(stub, request, limit)
                if format_ is Format.JSON:
                    emit(found)
                else:
                    show(_CALLS, map(_call, found.calls))
            else:
                answer = await stub.GetUsage(pb.GetUsageRequest(namespace=namespace, pool=pool))
                if format_ is Format.JSON:
                    emit(answer)
                else:
                    show(_BUDGETS, map(_budget, answer.budgets))

    with one_line_errors():
        if agent and not calls:
            raise FailedError("--agent goes with --calls: budgets of all are shown", Exit.USAGE)
        settings = settings_of(ctx, state_dir, tls_dir)
        asyncio.run(run(settings, _where(settings, address)))


def _where(settings: Settings, address: str | None) -> str:
    running = settings.state.running()
    if where := address or running.get("modelgateway"):
        return where
    if running:
        raise FailedError("no model gateway runs here: start the plane with --gateways", Exit.UNAVAILABLE)
    raise FailedError(
        "no plane is running here: start one with `agentctl up`, or name a ModelGatewayService by --address",
        Exit.UNAVAILABLE,
    )


async def _listed(
    stub: ModelGatewayServiceAsyncStub, request: pb.ListCallsRequest, limit: int
) -> pb.ListCallsResponse:
    """So many of them, or all that there are."""
    from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb

    found = pb.ListCallsResponse()
    while (missing := limit - len(found.calls)) > 0:
        request.page_size = min(missing, _PAGE)
        page = await stub.ListCalls(request)
        found.calls.extend(page.calls)
        request.page_token = found.next_page_token = page.next_page_token
        if not page.next_page_token:
            break
    return found


def _budget(budget: pb.Budget) -> list[object]:
    from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb

    window = span(budget.window.ToTimedelta().total_seconds()) if budget.HasField("window") else "for ever"
    resets = budget.resets_at.ToJsonString() if budget.HasField("resets_at") else "-"
    scope = pb.Scope.Name(budget.scope).removeprefix("SCOPE_").lower()
    return [
        budget.pool, scope, budget.name or "-", window, budget.used, budget.reserved, budget.limit, resets,
    ]  # fmt: skip


def _call(call: pb.CallRecord) -> list[object]:
    tokens = [f"{'~' if call.estimated else ''}{count}" for count in (call.input_tokens, call.output_tokens)]
    seconds = call.duration.ToTimedelta().total_seconds()
    return [
        call.started_at.ToJsonString(), call.pool, call.endpoint or "-", call.model, *tokens,
        f"{seconds:.2f}s" if seconds < 10 else span(seconds), call.status, call.error or "-", call.caller,
    ]  # fmt: skip
