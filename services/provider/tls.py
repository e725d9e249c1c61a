"""HTTPS with the certificate of our identity, which is renewed while we serve."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.identity import Identity
from libs.rpc.rotation import Files

_log = logging.getLogger(__name__)


@asynccontextmanager
async def presented(identity: Identity, check_seconds: float = 1.0) -> AsyncIterator[ssl.SSLContext]:
    """A server's context that presents the certificate which is in the files now to each new connection.
    Callers show none: they bring their API key."""
    files = Files(identity)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # stock OpenAI clients come with what they have
    context.load_cert_chain(identity.certificate, identity.key)
    keeper = asyncio.create_task(_keep(context, identity, files, check_seconds))
    try:
        yield context
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})


async def _keep(context: ssl.SSLContext, identity: Identity, files: Files, seconds: float) -> None:
    stale = False
    while True:
        await asyncio.sleep(seconds)
        try:
            stale = files.changed() or stale
            if stale:
                files.check()
                context.load_cert_chain(identity.certificate, identity.key)
                stale = False
        except OSError as error:
            _log.warning("cannot read our certificate, trying again: %s", error)
