"""`agentctl login` against an IdentityService and an API server that a test stands in for."""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import asynccontextmanager

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from libs import pki
from libs.enrol.tests.issuer import Issuer, Plane, new_authority
from libs.errors import DeniedError
from libs.identity import Identity

from ..__main__ import app


@pytest.fixture
def plane(tmp_path):
    return Plane(Issuer(new_authority()), tmp_path)


@pytest.fixture
async def login(plane, tmp_path):
    """Runs the command with these options."""
    async with plane.serve() as served:

        async def run(*options):
            words = [
                "login",
                "--identity-address",
                served.address,
                "--tls-dir",
                str(tmp_path / "me"),
                *options,
            ]
            return await asyncio.to_thread(CliRunner().invoke, app, words)

        yield run


@pytest.fixture
def by_file(plane):
    return ["--token-file", str(plane.token), "--ca-file", str(plane.trust / "ca.crt")]


@asynccontextmanager
async def api_server(plane, folder):
    """An API server with one ServiceAccount and the published bundle; gives its kubeconfig."""
    asked = []

    async def token(request):
        asked.append(await request.json())
        return web.json_response({"status": {"token": "from the cluster"}})

    async def trust(request):
        return web.json_response({"metadata": {}, "data": dict(plane.issuer.authority.bundle.files)})

    api = web.Application()
    api.router.add_post("/api/v1/namespaces/demo/serviceaccounts/ci/token", token)
    api.router.add_get("/api/v1/namespaces/agentctl-system/configmaps/agentctl-trust", trust)
    runner = web.AppRunner(api, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "it", "cluster": {"server": f"http://{host}:{port}"}}],
                "users": [{"name": "me", "user": {"token": "mine"}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
                "current-context": "it",
            }
        )
    )
    try:
        yield path, asked
    finally:
        await runner.cleanup()


async def test_a_token_becomes_a_certificate_folder(login, plane, by_file, tmp_path):
    result = await login("--producer", "demo", *by_file, "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    identity = Identity(tmp_path / "me")
    assert pki.own(identity).id == document["id"]
    assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600
    assert f"-key {identity.key}" in document["grpcurl"]
    assert "-authority coordination.cp.mesh.test" in document["grpcurl"]
    assert "grpcurl_management" not in document  # it may not
    (request,) = plane.issuer.requests
    assert (request.token, request.producer_namespace) == ("the token", "demo")


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["--user", "demo"], "user_namespace", "demo"),
        (["--administrator"], "administrator", True),
    ],
)
async def test_one_says_who_one_wants_to_be(login, plane, by_file, options, field, value):
    result = await login(*options, *by_file)
    assert result.exit_code == 0, result.output
    assert "-authority coordination.cp.mesh.test HOST:7410 list" in result.stdout
    assert "-authority apiserver.cp.mesh.test HOST:7415 list" in result.stdout
    (request,) = plane.issuer.requests
    assert request.WhichOneof("id") == field
    assert getattr(request, field) == value


async def test_the_cluster_gives_the_token_and_the_roots(login, plane, tmp_path):
    async with api_server(plane, tmp_path) as (kubeconfig, asked):
        result = await login(
            "--producer", "demo", "--service-account", "demo/ci", "--kubeconfig", str(kubeconfig)
        )
    assert result.exit_code == 0, result.output
    assert plane.issuer.requests[0].token == "from the cluster"
    assert asked[0]["spec"] == {"audiences": ["agentctl-identity"], "expirationSeconds": 600}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--token-file", "t"], "say one of --producer"),
        (["--producer", "demo", "--user", "demo", "--token-file", "t"], "say one of --producer"),
        (["--producer", "demo"], "say one of --service-account"),
        (["--producer", "demo", "--service-account", "ci"], "NAMESPACE/NAME"),
    ],
)
async def test_options_that_make_no_sense_are_usage(login, options, said):
    result = await login(*options)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


async def test_who_may_not_hears_it_and_gets_no_folder(login, plane, by_file, tmp_path):
    plane.issuer.errors = [DeniedError("RBAC does not let you")]
    result = await login("--administrator", *by_file)
    assert (result.exit_code, result.stderr) == (4, "error: RBAC does not let you\n")
    assert not (tmp_path / "me" / "tls.crt").exists()


async def test_a_server_of_other_roots_gets_no_token(login, plane, by_file):
    (plane.trust / "ca.crt").write_text(new_authority().bundle.root)
    result = await login("--administrator", *by_file)
    assert result.exit_code == 5, result.stderr
    assert not plane.issuer.requests


async def test_an_account_that_is_not_there_is_named_with_its_namespace(plane, login, tmp_path):
    async with api_server(plane, tmp_path) as (kubeconfig, _):
        words = ["--service-account", "nosuch/ci", "--producer", "nosuch", "--kubeconfig", str(kubeconfig)]
        result = await login(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "namespace 'nosuch' has no ServiceAccount 'ci', or does not exist" in result.stderr
