"""Serving an agent: AgentService over mTLS, and the plain port that probes and Prometheus look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from libs import mesh, pki, telemetry
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.rpc.boundary import Limits
from libs.rpc.server import FrontName, serving

from . import metrics
from .agent import Agent, Condition
from .manifest import Manifest
from .servicer import AgentServicer


@dataclass(frozen=True, slots=True)
class AgentServing:
    """Where an agent is served."""

    address: str
    """host:port of AgentService."""
    metrics_port: int | None
    """Of the plain port, if this serves it."""


@asynccontextmanager
async def agent_serving(
    agent: Agent,
    identity: Identity,
    *,
    host: str = "127.0.0.1",
    port: int = mesh.AGENT.port,
    metrics_port: int | None = None,
    front: FrontName = "h2corn",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    check_seconds: float | None = None,
) -> AsyncIterator[AgentServing]:
    """Serves the agent, with the certificate of its pod, while the block runs; 0 picks a port.

    Health and /readyz say what `condition().ready` says. With a `metrics_port` the plain port is served too,
    and the gauges of the registry that a condition has are true at each scrape; with None somebody else
    serves it, as one does who hands another program's metrics on. Events end when the block does.
    """
    servicer = AgentServicer(agent, pki.own(identity))
    async with AsyncExitStack() as stack:
        plain = None
        if metrics_port is not None:
            refresh = partial(_show, agent)
            plain = await stack.enter_async_context(
                telemetry.plain_port(metrics_port, readiness(agent), host, refresh)
            )
        served = await stack.enter_async_context(
            serving(
                mesh.AGENT,
                identity,
                partial(pb_grpc.add_AgentServiceServicer_to_server, servicer),
                host=host,
                port=port,
                front=front,
                limits=limits,
                on_drain=[agent.events.close],
                check_seconds=check_seconds,
                ready=readiness(agent),
            )
        )
        yield AgentServing(served.address, plain)


def readiness(agent: Agent) -> Callable[[], Awaitable[None]]:
    """What probes ask: raises UnavailableError, saying why, while the agent is not ready."""

    async def ready() -> None:
        condition = await agent.condition()
        if not condition.ready:
            raise UnavailableError(condition.not_ready_reason or "not ready")

    return ready


async def _show(agent: Agent) -> None:
    show(agent.manifest(), await agent.condition())


def show(manifest: Manifest, condition: Condition) -> None:
    """Sets the gauges of the registry that a condition has."""
    under_way = len(condition.runs)
    metrics.UP.set(to=1)
    metrics.READY.set(to=condition.ready)
    metrics.PAUSED.set(to=condition.paused)
    metrics.ACTIVE_RUNS.set(to=under_way)
    metrics.SATURATION.set(to=under_way / max(manifest.limits.slots, under_way, 1))
    if manifest.surfaces.subscriptions:
        metrics.PENDING_EVENTS.set(to=condition.pending_events)
