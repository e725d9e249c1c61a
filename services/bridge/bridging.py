"""The bridge as a whole, given its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
from aiohttp import ClientSession, TCPConnector
from prometheus_client import REGISTRY
from yarl import URL

from libs import pki, telemetry, work
from libs.contract.events import Ring
from libs.contract.serving import agent_serving, readiness
from libs.enrol import enrolled
from libs.identity import Identity

from . import metrics
from .agent import BridgedAgent
from .claims import Claims, claiming
from .ending import report_on
from .foreign import Foreign
from .forwarder import Forwarder, Tls, Upstreams, forwarding
from .loopback import Loopback
from .manifest import Known
from .outbound import Outbound
from .presence import Presence
from .settings import Settings, Upstream
from .turns import Turns
from .work import Work

if TYPE_CHECKING:
    from libs.contract.report import Report

_CHECK_SECONDS = 5.0  # each look is a connection to the agent
_KEEPALIVE_SECONDS = 4.0  # shorter than servers', or a request would now and then meet a closed connection


@dataclass(frozen=True)
class Bridging:
    """A bridge that is up; its agent may be there or not yet."""

    agent: BridgedAgent
    presence: Presence
    loopback: Loopback
    address: str
    """host:port of AgentService."""
    metrics_port: int
    forward_port: int
    report: Callable[[], Report | None]
    """On the run of mode once, when the agent has ended; None if there is nothing to tell."""


@asynccontextmanager
async def bridging(settings: Settings, instruction: str) -> AsyncIterator[Bridging]:
    """The whole bridge while the block runs. When it begins, all that the agent needs at its start is there:
    its certificate, and its way out."""
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(enrolled(settings))
        loopback = Loopback(settings.shared_dir, settings.private, settings.certificate_lifetime)
        # agentd takes one request a connection; other servers keep theirs.
        inside = await stack.enter_async_context(
            ClientSession(connector=TCPConnector(limit=0, force_close=True))
        )
        events = Ring()
        turns = Turns(events, settings.max_tokens)
        forwarder = await stack.enter_async_context(_way_out(settings, identity, turns))
        forward_port = await stack.enter_async_context(
            forwarding(forwarder, settings.loopback, settings.forward_port)
        )
        client: work.Client | None = None
        if settings.claimed_queue:
            client = await stack.enter_async_context(work.connect(settings.coordination, identity))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(loopback.keep)

        me = pki.own(identity)
        foreign = Foreign(
            inside, _url("https", settings, settings.agent_port, "/mcp"), lambda: loopback.context
        )
        presence = Presence(foreign)
        work_of_agent = Work(
            foreign,
            presence,
            events,
            turns,
            tasks,
            instruction=instruction,
            slots=settings.taken_slots,
            counts_runs=bool(settings.claimed_queue),
        )
        known = Known(
            me,
            settings.claimed_queue,
            settings.taken_slots,
            settings.max_depth,
            settings.subscriptions,
            settings.metrics_port,
        )
        own = settings.agent_metrics_port
        passed_through = metrics.PassedThrough(
            inside,
            _url("http", settings, own, "/metrics") if own else "",
            counts_runs=bool(settings.claimed_queue),
        )
        agent = BridgedAgent(
            foreign,
            presence,
            work_of_agent,
            turns,
            events,
            known,
            settings.drain_timeout,
            tasks,
            passed_through.pending,
        )
        if client is not None:
            worker = work.Worker(
                client,
                [settings.claimed_queue],
                slots=settings.taken_slots,
                lease=settings.lease,
                shard=work.Shard(*settings.shard) if settings.shard else None,
            )
            agent.steer(worker)
            tasks.start_soon(agent.claim, claiming(worker, Claims(work_of_agent, events), client, me))
        tasks.start_soon(presence.run, agent)

        metrics_port = await stack.enter_async_context(_plain_port(settings, agent, passed_through))
        served = await stack.enter_async_context(
            agent_serving(
                agent,
                identity,
                host=settings.host,
                port=settings.port,
                front=settings.front,
                check_seconds=_CHECK_SECONDS,
            )
        )
        yield Bridging(
            agent,
            presence,
            loopback,
            served.address,
            metrics_port,
            forward_port,
            lambda: report_on(turns.own, settings, me.name, was_drained=agent.was_drained),
        )


@asynccontextmanager
async def _way_out(settings: Settings, identity: Identity, turns: Turns) -> AsyncIterator[Forwarder]:
    connector = TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
    # Bodies pass as they are: packed, if they come packed.
    async with ClientSession(connector=connector, auto_decompress=False) as session:
        model = Upstream(settings.base_url, settings.model_identity)
        upstreams = Upstreams(model, settings.endpoints, settings.answer_within)
        tls = Tls(Outbound(None, settings.ca_file).context, Outbound(identity, settings.ca_file).context)
        yield Forwarder(session, upstreams, tls, turns)


@asynccontextmanager
async def _plain_port(
    settings: Settings, agent: BridgedAgent, passed_through: metrics.PassedThrough
) -> AsyncIterator[int]:
    REGISTRY.register(passed_through)
    refresh = partial(_refresh, passed_through.refresh, partial(metrics.show, agent))
    try:
        async with telemetry.plain_port(
            settings.metrics_port, readiness(agent), settings.host, refresh
        ) as port:
            yield port
    finally:
        REGISTRY.unregister(passed_through)


async def _refresh(*sources: Callable[[], Awaitable[None]]) -> None:
    for source in sources:
        await source()


def _url(scheme: str, settings: Settings, port: int, path: str) -> str:
    return str(URL.build(scheme=scheme, host=settings.loopback, port=port, path=path))
