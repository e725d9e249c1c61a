"""The provider as a whole, given its settings: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from libs.enrol import Credentials, enrolled

from .server import Provider
from .settings import Settings
from .tls import presented


@asynccontextmanager
async def providing(
    settings: Settings, credentials: Credentials | None = None, *, folder: str = ""
) -> AsyncIterator[int]:
    """Serves while the block runs, and finishes then what is begun; yields its port. HTTPS with credentials
    (identity in `folder` below tls_dir); RefusedError if they are no good."""
    host, _, port = settings.listen.rpartition(":")
    runner = web.AppRunner(Provider(settings).application(), access_log=None, shutdown_timeout=5)
    async with AsyncExitStack() as stack:
        context: ssl.SSLContext | None = None
        if credentials is not None:
            identity = await stack.enter_async_context(enrolled(credentials, "provider", folder=folder))
            context = await stack.enter_async_context(presented(identity))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, host, int(port), ssl_context=context)
        await site.start()
        bound: int = runner.addresses[0][1]
        logging.getLogger("provider").info("serving", extra={"port": bound})
        yield bound
