"""The certificates between agent and bridge: who is let in, and renewal in place."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientSession, web
from cryptography import x509

from libs.errors import UnreachableError
from services.bridge.foreign import Foreign
from services.bridge.loopback import Loopback


@pytest.fixture
def loopback(tmp_path):
    return Loopback(tmp_path / "shared", tmp_path / "private", timedelta(hours=24))


def leaf(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_shared_folder_has_what_the_agent_needs_and_not_our_key(loopback, tmp_path):
    shared = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "shared").iterdir()}
    assert shared == {"tls.crt": 0o640, "tls.key": 0o640, "ca.crt": 0o640}
    private = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "private").iterdir()}
    assert private == {"tls.crt": 0o600, "tls.key": 0o600}
    keys = [path.read_bytes() for path in tmp_path.glob("*/tls.key")]
    assert keys[0] != keys[1]
    assert leaf(tmp_path / "shared/tls.crt").not_valid_after_utc < datetime.now(UTC) + timedelta(hours=24)


def test_a_renewal_keeps_keys_and_authority(loopback, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    context = loopback.context
    loopback.renew()
    changed = {
        path.relative_to(tmp_path).as_posix() for path, was in before.items() if path.read_bytes() != was
    }
    assert changed == {"shared/tls.crt", "private/tls.crt"}
    assert loopback.context is not context


async def serving(folder):
    """A listener with the agent's files, as agentd has one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def answer(request):
        return web.json_response(
            {"jsonrpc": "2.0", "id": 1, "result": {"method": (await request.json())["method"]}}
        )

    app = web.Application()
    app.router.add_post("/mcp", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    return runner, f"https://127.0.0.1:{runner.addresses[0][1]}/mcp"


async def test_only_the_bridge_is_let_in_and_only_the_agent_believed(loopback, tmp_path):
    runner, url = await serving(tmp_path / "shared")
    stranger = Loopback(tmp_path / "other", tmp_path / "other-private", timedelta(hours=24))
    try:
        async with ClientSession() as session:
            assert await Foreign(session, url, lambda: loopback.context).call("a2a.Pause") == {
                "method": "a2a.Pause"
            }
            with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                await Foreign(session, url, lambda: stranger.context).call("a2a.Pause")
            nobody = ssl.create_default_context(cafile=str(tmp_path / "shared/ca.crt"))
            with pytest.raises(UnreachableError):
                await Foreign(session, url, lambda: nobody).call("a2a.Pause")
    finally:
        await runner.cleanup()


async def test_it_is_renewed_at_two_thirds_of_its_life(tmp_path):
    loopback = Loopback(tmp_path / "shared", tmp_path / "private", timedelta(seconds=0.3))
    path = tmp_path / "shared/tls.crt"
    first = path.read_bytes()
    keeper = asyncio.create_task(loopback.keep())
    try:
        async with asyncio.timeout(10):
            while path.read_bytes() == first:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
