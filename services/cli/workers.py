"""`agentctl workers`: what to do about a worker that is gone."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Exit, FailedError, emit
from .session import Session, command

app = typer.Typer(no_args_is_help=True, help="Workers that hold work.")


@app.callback()
def group() -> None:
    """Workers that hold work."""


@command(app, "release")
async def release(
    session: Session,
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Of the pod.")],
    pod_uid: Annotated[str, typer.Argument(metavar="POD-UID", help="The last part of the worker's id.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever looks later.")] = "",
) -> None:
    """Give back all that one pod holds, at once and without counting an attempt. For pods that are gone:
    one that still works finds out at its next renewal.

    Example: agentctl workers release demo 6f0c7c1e-3b0f-4a4e-9a1c-2f1f0f6d7a55 --reason "node lost"
    """
    from agentctl.coordination.v1 import coordination_service_pb2 as pb

    request = pb.ReleaseWorkerRequest(namespace=namespace, pod_uid=pod_uid, reason=reason)
    answer = await session.stub.ReleaseWorker(request)
    if session.json:
        emit(answer)
    else:
        typer.echo(f"{answer.released_count} items given back")
    if not answer.released_count:
        raise FailedError(f"no pod {pod_uid} of {namespace} holds anything", Exit.NOT_FOUND)
