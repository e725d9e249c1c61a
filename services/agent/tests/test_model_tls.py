"""Whom the agent believes at the model's https endpoint."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web
from opentelemetry.trace import NoOpTracer

from libs.pki import Authority
from libs.testing import ca
from services.agent import model
from services.agent.run import Failure


@asynccontextmanager
async def endpoint(identity, seen=None):
    """`seen`: those who call need a certificate, whose serial numbers it gets."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)
    if seen is not None:
        context.load_verify_locations(identity.root)
        context.verify_mode = ssl.CERT_REQUIRED

    async def models(http):
        if seen is not None:
            seen.append(http.transport.get_extra_info("peercert")["serialNumber"])
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def connect(url, ca_file=None, ours=None):
    limit = timedelta(seconds=5)
    return model.connect(url, lambda: "", limit, NoOpTracer(), ca_file=ca_file, identity=ours)


@pytest.fixture
def identity(tmp_path):
    return ca.identity(ca.authority(), tmp_path, "/cp/provider", dns_names=["localhost"])


async def test_the_authorities_of_the_file_are_believed(identity):
    async with endpoint(identity) as url, connect(url, identity.root) as it:
        assert await it.check() is None


async def test_without_the_file_only_the_systems_are(identity):
    async with endpoint(identity) as url, connect(url) as it:
        failure = await it.check()
        assert isinstance(failure, Failure)
        assert "certificate" in failure.error


async def test_a_file_that_changes_counts_from_the_next_call_on(identity, tmp_path):
    stranger = Authority.create(tmp_path / "other", "mesh.test")
    file = tmp_path / "ca.crt"
    file.write_text(stranger.bundle.root)
    async with endpoint(identity) as url, connect(url, file) as it:
        assert isinstance(await it.check(), Failure)
        file.write_text(stranger.bundle.root + identity.root.read_text())
        assert await it.check() is None


async def test_a_file_that_is_not_there_is_a_failure_that_names_it(identity, tmp_path):
    async with endpoint(identity) as url, connect(url, tmp_path / "nowhere.crt") as it:
        failure = await it.check()
        assert isinstance(failure, Failure)
        assert "nowhere.crt" in failure.error


@pytest.fixture
def ours(tmp_path):
    return ca.identity(ca.authority(), tmp_path, "/ns/a/agent/x/pod/x-0/u1")


async def test_our_certificate_is_shown_to_who_asks_and_its_successor_from_the_next_call_on(identity, ours):
    seen: list[str] = []
    async with endpoint(identity, seen) as url, connect(url, ours=ours) as it:
        assert await it.check() is None
        ca.authority().issue("spiffe://mesh.test/ns/a/agent/x/pod/x-0/u1", ours.folder)
        assert await it.check() is None
    assert len(set(seen)) == 2


async def test_without_one_an_endpoint_that_asks_does_without_us(identity):
    async with endpoint(identity, []) as url, connect(url, identity.root) as it:
        assert isinstance(await it.check(), Failure)


async def test_files_in_the_middle_of_a_change_do_no_harm(identity, ours):
    seen: list[str] = []
    async with endpoint(identity, seen) as url, connect(url, identity.root, ours) as it:
        assert await it.check() is None
        ours.certificate.write_text("half of a certif")
        assert await it.check() is None
    assert len(seen) == 2
