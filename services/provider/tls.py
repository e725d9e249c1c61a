"""HTTPS with the certificate of our identity, which is renewed while we serve."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.identity import Identity
from libs.rpc.rotation import Files, follow


@asynccontextmanager
async def presented(identity: Identity, check_seconds: float = 1.0) -> AsyncIterator[ssl.SSLContext]:
    """A server's context that presents the certificate which is in the files now to each new connection.
    Callers show none: they bring their API key."""
    files = Files(identity)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # stock OpenAI clients come with what they have
    context.load_cert_chain(identity.certificate, identity.key)

    async def take() -> bool:
        context.load_cert_chain(identity.certificate, identity.key)
        return True

    keeper = asyncio.create_task(follow(files, check_seconds, take))
    try:
        yield context
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
