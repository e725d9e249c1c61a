"""The operator as a whole, given a cluster: `__main__` runs it alone, the local home beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import anyio
from prometheus_client import REGISTRY

from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceStub
from agentctl.operator.v1 import operator_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster, Object
from libs.cluster.kinds import EVENT
from libs.cluster.lease import Election, Terms
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.mesh import COORDINATION, IDENTITY, OPERATOR
from libs.rpc.boundary import Limits
from libs.rpc.client import dial
from libs.rpc.server import Serving, serving

from .cache import Cache
from .children import Settled
from .controller import Controller
from .events import Recorder
from .identity.attest import Rules
from .identity.keda import NAME as SCALER_CLIENT
from .identity.office import LIMITS, Charter, Office, open_office
from .metrics import LEADING, WRITES, Depths
from .minting import Mint
from .plan import Rendering
from .pods import Ended
from .presence import ASKED_SECONDS
from .queues import Coordination, Remote
from .reconciler import Reconciler
from .registration import Registration
from .server import LEASE_NAME, OperatorServer
from .settings import Settings
from .writes import CLOCK, Writes

_SELDOM_SECONDS = 5.0  # a listener that knows no callers has little to look after


@dataclass(frozen=True)
class Operator:
    """An operator at work."""

    cache: Cache
    controller: Controller
    election: Election
    reconciler: Reconciler

    async def ready(self) -> None:
        """Raises UnavailableError until everything has been listed once."""
        waiting = [kind for kind, age in self.cache.ages().items() if age == float("inf")]
        if waiting:
            raise UnavailableError(f"not listed yet: {', '.join(sorted(waiting))}")


class Identities(Protocol):
    """What the leader does for who is who."""

    async def publish(self, namespace: str) -> None:
        """Whom to trust is known in that namespace from now on."""

    async def deny(self, ended: Ended) -> None:
        """The pod's certificate is good for nothing any more."""

    async def lead(self) -> None:
        """What only one replica does, for ever."""


class NoIdentities:
    """Where certificates come from elsewhere."""

    async def publish(self, namespace: str) -> None:
        """Nothing."""

    async def deny(self, ended: Ended) -> None:
        """Nothing."""

    async def lead(self) -> None:
        """Nothing."""


class OfficeIdentities:
    """By the office beside us. The API server hears of our roots through `registration`, if there is one."""

    def __init__(self, office: Office, registration: Registration | None = None) -> None:
        self._office = office
        self._registration = registration

    async def publish(self, namespace: str) -> None:
        """As `Identities` has it. The office keeps right what was published once."""
        await self._office.publish(namespace)

    async def deny(self, ended: Ended) -> None:
        """As `Identities` has it."""
        await self._office.denials.deny_pod(ended.namespace, ended.agent, ended.pod, ended.uid)

    async def lead(self) -> None:
        """As `Identities` has it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._office.lead)
            if self._registration:
                group.start_soon(self._registration.run)


@asynccontextmanager
async def operating(settings: Settings, cluster: Cluster) -> AsyncIterator[Operator]:
    """The whole operator while the block runs: it issues its own certificate, then reconciles, answers and
    certifies."""
    rules = Rules(settings.namespace)
    charter = Charter(settings.trust_domain, settings.tls_dir, rules, keda_namespace=settings.keda_namespace)
    drain = settings.drain.total_seconds()
    async with AsyncExitStack() as stack:
        office = await stack.enter_async_context(open_office(cluster, charter))
        coordination: Coordination | None = None
        if settings.coordination_address:
            channel = await stack.enter_async_context(
                dial(COORDINATION, settings.coordination_address, office.identity, timeout=10)
            )
            coordination = Remote(CoordinationServiceStub(channel))
        registration: Registration | None = None
        if settings.registers:
            registration = Registration(
                cluster, settings.namespace, lambda: office.vault.authority.bundle.root
            )
        identities = OfficeIdentities(office, registration)
        operator = await stack.enter_async_context(
            reconciling(settings, cluster, coordination=coordination, identities=identities)
        )
        numbers = Depths(operator.controller.depths, operator.cache.ages)
        REGISTRY.register(numbers)
        stack.callback(REGISTRY.unregister, numbers)
        group = await stack.enter_async_context(anyio.create_task_group())
        group.start_soon(office.run)
        if settings.mint:
            account, _, folder = settings.mint.partition(":")
            group.start_soon(Mint(cluster, settings.namespace, account, Path(folder)).run)
        stack.callback(group.cancel_scope.cancel)
        await stack.enter_async_context(answering(settings, cluster, office.identity, operator))
        await stack.enter_async_context(
            serving(
                IDENTITY,
                office.identity,
                office.register,
                host=settings.host,
                port=settings.identity_port,
                front=settings.front,
                limits=replace(LIMITS, drain_seconds=drain),
                check_seconds=_SELDOM_SECONDS,
            )
        )
        yield operator


@asynccontextmanager
async def reconciling(
    settings: Settings,
    cluster: Cluster,
    *,
    coordination: Coordination | None = None,
    identities: Identities = NoIdentities(),  # noqa: B008  (it has no state)
    election: Election | None = None,
    asked_seconds: float = ASKED_SECONDS,
) -> AsyncIterator[Operator]:
    """Follows the cluster, stands for election and, as the leader, reconciles, while the block runs. The
    lease is released on the way out. `coordination` is told of pods that ended and of the queues that fleets
    name, `identities` of pods that ended and of namespaces with agents. Every `asked_seconds` it looks
    whether there is a KEDA, whose new certificate comes into the ScaledObjects one to six times as long after
    it came into the Secret."""
    seconds = int(settings.lease.total_seconds())
    terms = Terms(seconds, trust=seconds * 2 / 3, period=seconds / 5)
    election = election or Election(cluster, settings.namespace, LEASE_NAME, settings.replica, terms=terms)
    controller = Controller(settings.workers, settings.resync.total_seconds())
    settled = Settled()
    cache = Cache(
        cluster,
        settings.only_namespace,
        controller.wake,
        settled.forget,
        controller.pod_changed,
        asked_seconds=asked_seconds,
        scaler_client=(settings.keda_namespace, SCALER_CLIENT),
        wake_later=lambda key: controller.wake_within(key, asked_seconds, 6 * asked_seconds),
    )

    async def create(event: Object) -> Object:
        election.check()
        made = await cluster.create(event)
        WRITES.labels(EVENT.name, "create").inc()
        return made

    recorder = Recorder(create, settings.replica)
    reconciler = Reconciler(
        cluster,
        cache,
        lambda: Writes(cluster, cache, election.check, CLOCK),
        recorder,
        Rendering(
            settings.agent_image,
            settings.coordination_address,
            settings.identity_address,
            settings.stand_in_url,
            settings.namespace,
            settings.scaler_address,
            settings.loopback,
            settings.model_gateway_url,
            settings.mcp_gateway_url,
        ),
        settled,
        controller.queues.set,
        identities.publish,
        controller.queues.trouble,
        controller.queues.heard,
    )

    async def lead() -> None:
        LEADING.set(1)
        try:
            await cache.synced()
            async with anyio.create_task_group() as group:
                group.start_soon(identities.lead)
                await controller.lead(
                    cache,
                    reconciler.reconcile,
                    reconciler.register,
                    coordination,
                    identities.deny,
                    election.check,
                )
        finally:
            LEADING.set(0)

    async with anyio.create_task_group() as group:
        group.start_soon(cache.run)
        group.start_soon(recorder.run)
        group.start_soon(election.run, lead)
        yield Operator(cache, controller, election, reconciler)
        group.cancel_scope.cancel()


@asynccontextmanager
async def answering(
    settings: Settings, cluster: Cluster, identity: Identity, operator: Operator
) -> AsyncIterator[Serving]:
    """Serves OperatorService while the block runs, on every replica."""
    servicer = OperatorServer(
        cluster,
        operator.cache,
        operator.controller,
        operator.reconciler,
        lambda: operator.election.leading,
        settings.namespace,
    )
    async with serving(
        OPERATOR,
        identity,
        lambda server: pb_grpc.add_OperatorServiceServicer_to_server(servicer, server),
        host=settings.host,
        port=settings.port,
        front=settings.front,
        limits=Limits(drain_seconds=settings.drain.total_seconds()),
        ready=operator.ready,
    ) as served:
        yield served
