"""Components of a cluster that share a pod: the overlay `single`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from libs import telemetry
from libs.cluster import Cluster
from libs.cluster.kubernetes import connect
from libs.enrol import Credentials
from libs.rpc.server import stopped
from libs.settings import SettingsError, load
from services.admission.admitting import admitting
from services.admission.settings import Settings as AdmissionSettings
from services.apiserver.managing import managing
from services.apiserver.settings import Settings as ApiserverSettings
from services.coordination.coordinating import coordinating
from services.coordination.settings import Settings as CoordinationSettings
from services.mcpgateway.settings import Settings as McpGatewaySettings
from services.modelgateway.settings import Settings as ModelGatewaySettings
from services.provider.providing import providing
from services.provider.settings import Settings as ProviderSettings
from services.scaler.scaling import scaling
from services.scaler.settings import Settings as ScalerSettings

from .settings import Settings

_NO_PREFIX = "AGENTCTL_IDENTITY_"  # Credentials has the mesh's own variables only
_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


async def run(settings: Settings, environ: Mapping[str, str]) -> None:
    """Runs them until SIGTERM. SettingsError names what is wrong with any of them. The pod is ready if
    coordination is: agents need it, also while the API server, which others stand on, is away."""
    coordination = (
        load(CoordinationSettings, "COORDINATION_", environ) if _has(settings, "coordination") else None
    )
    provider = load(ProviderSettings, "PROVIDER_", environ) if _has(settings, "provider") else None
    apiserver = load(ApiserverSettings, "APISERVER_", environ) if _has(settings, "apiserver") else None
    admission = load(AdmissionSettings, "ADMISSION_", environ) if _has(settings, "admission") else None
    scaler = load(ScalerSettings, "SCALER_", environ) if _has(settings, "scaler") else None
    models = load(ModelGatewaySettings, "MODELGATEWAY_", environ) if _has(settings, "modelgateway") else None
    tools = load(McpGatewaySettings, "MCPGATEWAY_", environ) if _has(settings, "mcpgateway") else None
    credentials = load(Credentials, _NO_PREFIX, environ)
    telemetry.start("plane", settings.log_level)
    ready: Callable[[], Awaitable[None]] = _always
    async with AsyncExitStack() as stack:
        if coordination:
            folder = "coordination"
            served = await stack.enter_async_context(coordinating(coordination, folder=folder))
            ready = served.check
        if scaler:
            await stack.enter_async_context(scaling(scaler, folder="scaler"))
        if provider:
            trusted = credentials if provider.tls else None
            await stack.enter_async_context(providing(provider, trusted, folder="provider"))
        if apiserver or admission or models or tools:
            cluster = await stack.enter_async_context(_connected())
        if apiserver:
            await stack.enter_async_context(managing(apiserver, cluster, folder="apiserver"))
        if admission:
            await stack.enter_async_context(admitting(admission, cluster, folder="admission"))
        if models:
            from services.modelgateway.serving import model_serving

            await stack.enter_async_context(model_serving(models, cluster, folder="modelgateway"))
        if tools:
            from services.mcpgateway.composition import mcp_serving  # the MCP SDK: 30 MiB

            await stack.enter_async_context(mcp_serving(tools, cluster, folder="mcpgateway"))
        await stack.enter_async_context(telemetry.plain_port(settings.metrics_port, ready, settings.host))
        await stopped()


async def _always() -> None:
    """Ready: what runs here is up before the port answers."""


@asynccontextmanager
async def _connected() -> AsyncIterator[Cluster]:
    """The API server, by the token that the operator beside us leaves here; it may come after us."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                cluster = await stack.enter_async_context(connect(None))
            except SettingsError as error:
                _log.info("waiting for our token: %s", error)
                await anyio.sleep(_LOOK_SECONDS)
            else:
                break
        yield cluster


def _has(settings: Settings, component: str) -> bool:
    return component in settings.components
