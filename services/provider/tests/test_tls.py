"""HTTPS with a certificate that is renewed while the provider serves."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, TCPConnector, web
from cryptography import x509

from libs.settings import load
from libs.testing import ca
from services.provider.server import Provider
from services.provider.settings import Settings
from services.provider.tls import presented


@pytest.fixture
def identity(tmp_path):
    return ca.identity(ca.authority(), tmp_path, "/cp/provider", dns_names=["localhost"])


@asynccontextmanager
async def serving(identity):
    async with presented(identity, check_seconds=0.02) as context:
        provider = Provider(load(Settings, "PROVIDER_", {}))
        runner = web.AppRunner(provider.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


async def serial(port, identity):
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=identity.root)
    _, writer = await asyncio.open_connection("localhost", port, ssl=context, family=socket.AF_INET)
    found = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    writer.close()
    return found.serial_number


async def test_models_are_listed_over_https(identity):
    context = ssl.create_default_context(cafile=identity.root)
    async with (
        serving(identity) as port,
        ClientSession(connector=TCPConnector(ssl=context, family=socket.AF_INET)) as session,
        session.get(f"https://localhost:{port}/v1/models") as response,
    ):
        assert response.status == 200


async def test_a_renewed_certificate_is_shown_to_new_connections(identity):
    async with serving(identity) as port:
        first = await serial(port, identity)
        ca.authority().issue("spiffe://mesh.test/cp/provider", identity.folder, dns_names=["localhost"])
        async with asyncio.timeout(10):
            while await serial(port, identity) == first:  # noqa: ASYNC110  (nothing tells when it is loaded)
                await asyncio.sleep(0.02)


async def test_half_a_renewal_leaves_the_old_certificate(identity, caplog):
    async with serving(identity) as port:
        first = await serial(port, identity)
        identity.certificate.write_text("half a certifi")
        async with asyncio.timeout(10):
            while "trying again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await serial(port, identity) == first
