"""Components of a cluster that share a pod: the overlay `single`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from libs import telemetry
from libs.enrol import Credentials
from libs.rpc.server import stopped
from libs.settings import load
from services.coordination.coordinating import coordinating
from services.coordination.settings import Settings as CoordinationSettings
from services.provider.providing import providing
from services.provider.settings import Settings as ProviderSettings

from .settings import Settings

_NO_PREFIX = "AGENTCTL_IDENTITY_"  # Credentials has the mesh's own variables only


async def run(settings: Settings, environ: Mapping[str, str]) -> None:
    """Runs them until SIGTERM. SettingsError names what is wrong with any of them."""
    coordination = (
        load(CoordinationSettings, "COORDINATION_", environ) if _has(settings, "coordination") else None
    )
    provider = load(ProviderSettings, "PROVIDER_", environ) if _has(settings, "provider") else None
    credentials = load(Credentials, _NO_PREFIX, environ)
    telemetry.start("plane", settings.log_level)
    checks: list[Callable[[], Awaitable[None]]] = []

    async def ready() -> None:
        for check in checks:
            await check()

    async with AsyncExitStack() as stack:
        if coordination:
            folder = "coordination"
            served = await stack.enter_async_context(coordinating(coordination, folder=folder))
            checks.append(served.check)
        if provider:
            trusted = credentials if provider.tls else None
            await stack.enter_async_context(providing(provider, trusted, folder="provider"))
        await stack.enter_async_context(telemetry.plain_port(settings.metrics_port, ready, settings.host))
        await stopped()


def _has(settings: Settings, component: str) -> bool:
    return component in settings.components
