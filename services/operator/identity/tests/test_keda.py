"""KEDA's certificate for the scaler: what it opens, when it is made anew, and who makes it."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from contextlib import aclosing
from dataclasses import replace

import grpc
import pytest
from cryptography import x509

from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs import pki
from libs.cluster.kinds import SECRET
from libs.errors import NotFoundError, UnavailableError
from libs.identity import Identity
from libs.mesh import SCALER
from libs.pki.certificates import private_pem, uri
from libs.rpc.server import serving
from services.operator.identity.keda import DIGEST, NAME, _digest
from services.operator.identity.office import open_office
from services.operator.identity.server import AUDIENCE
from services.operator.identity.vault import ROTATE, SECRET_NAME

from .conftest import SYSTEM, named

pytestmark = pytest.mark.anyio

KEDA = "keda"
HOUR = 3600.0


@pytest.fixture
def charter(charter):
    return replace(charter, keda_namespace=KEDA)


@pytest.fixture
async def keda(world):
    await world.namespace(KEDA)


async def secret(world):
    return await world.cluster.get(SECRET, KEDA, NAME)


async def files(world):
    return {name: b64decode(text) for name, text in (await secret(world))["data"].items()}


async def key_of(world):
    return (await files(world))["tls.key"]


class Scaler(pb_grpc.ExternalScalerServicer):
    async def IsActive(self, request, context):
        return pb.IsActiveResponse(result=True)


@pytest.fixture
async def scaler(world, office, ask, account, tmp_path):
    """A server with the certificate that the component scaler gets."""
    await world.account(SYSTEM, account)
    token = await world.cluster.issue_token(SYSTEM, account, AUDIENCE, 3600)
    answer = await ask(token, component="scaler")
    identity = Identity(tmp_path / "scaler")
    chain = answer.certificate_chain.encode()
    pki.write_identity(identity, office.vault.authority.bundle, private_pem(ask.key), chain)
    servicer = Scaler()  # type: ignore[abstract]
    async with serving(
        SCALER, identity, lambda server: pb_grpc.add_ExternalScalerServicer_to_server(servicer, server)
    ) as served:
        yield served.address


async def is_active(world, address, name):
    """As KEDA asks: it has the Secret and the name in the scaler's address, and nothing else."""
    held = await files(world)
    credentials = grpc.ssl_channel_credentials(held["ca.crt"], held["tls.key"], held["tls.crt"])
    options = (("grpc.ssl_target_name_override", name),)
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        stub = pb_grpc.ExternalScalerStub(channel)
        return (await stub.IsActive(pb.ScaledObjectRef(name="docs", namespace="demo"), timeout=10)).result


@pytest.mark.usefixtures("keda")
@pytest.mark.parametrize("account", ["scaler", "plane"])
async def test_what_the_secret_holds_is_enough_to_ask_the_scaler_by_its_services_name(world, office, scaler):
    await office.keep()
    assert set(await files(world)) == {"ca.crt", "tls.crt", "tls.key"}
    assert await is_active(world, scaler, "scaler.agentctl-system.svc")
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await is_active(world, scaler, "scaler.somewhere-else.svc")


@pytest.mark.usefixtures("keda")
async def test_it_is_kedas_and_has_the_life_of_a_components(world, office):
    await office.keep()
    leaf = x509.load_pem_x509_certificates((await files(world))["tls.crt"])[0]
    assert uri(leaf) == "spiffe://mesh.test/cp/keda"
    left = leaf.not_valid_after_utc.timestamp() - world.now()
    assert 23.9 * HOUR < left <= 24 * HOUR


@pytest.mark.usefixtures("keda")
async def test_it_is_made_anew_at_two_thirds_of_its_life_and_not_before(world, office):
    await office.keep()
    first = await secret(world)
    world.clock = 15.9 * HOUR
    await office.keep()
    assert await secret(world) == first
    world.clock = 16.1 * HOUR
    await office.keep()
    renewed = (await secret(world))["data"]
    assert {name for name in renewed if renewed[name] == first["data"][name]} == {"ca.crt"}


@pytest.mark.usefixtures("keda")
async def test_another_leader_leaves_a_good_one(world, office, charter):
    await office.keep()
    first = await secret(world)
    async with open_office(world.cluster, charter, world.now) as other:
        await other.keep()
    assert await secret(world) == first


@pytest.mark.usefixtures("keda")
async def test_a_secret_that_was_deleted_is_made_again(world, office):
    await office.keep()
    first = await key_of(world)
    await world.cluster.delete(SECRET, KEDA, NAME)
    await office.keep()
    assert await key_of(world) != first


@pytest.mark.usefixtures("keda")
@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
async def test_a_secret_that_was_edited_is_made_right(world, office, name):
    await office.keep()
    edited = await secret(world)
    edited["data"][name] = b64encode(b"something else").decode()
    await world.cluster.replace(edited)
    await office.keep()
    held = await files(world)
    bundle = office.vault.authority.bundle
    assert held["ca.crt"].decode() == bundle.root
    assert pki.renewal_of(held["tls.crt"], held["tls.key"], bundle) > world.now()


@pytest.mark.usefixtures("keda")
async def test_a_secret_that_lacks_a_file_is_made_right_whatever_it_says_of_itself(world, office):
    await office.keep()
    edited = await secret(world)
    del edited["data"]["tls.key"]
    edited["metadata"]["annotations"][DIGEST] = _digest(edited["data"])
    await world.cluster.replace(edited)
    await office.keep()
    assert await key_of(world)


@pytest.mark.usefixtures("keda")
async def test_it_is_kept_though_the_bundle_cannot_be_published(world, office, monkeypatch):
    async def fail(*_):
        raise UnavailableError("the API server is busy")

    monkeypatch.setattr(office.vault, "keep", fail)
    with pytest.raises(UnavailableError):
        await office.keep()
    assert await key_of(world)


@pytest.mark.usefixtures("keda")
async def test_an_empty_secret_from_the_manifests_is_filled(world, office):
    await world.cluster.create(named("v1", "Secret", KEDA, NAME, type="Opaque"))
    await office.keep()
    assert await key_of(world)


@pytest.mark.usefixtures("keda")
async def test_a_new_root_is_believed_as_soon_as_it_is_published(world, office):
    await office.keep()
    rotate = named("v1", "Secret", SYSTEM, SECRET_NAME, metadata={"annotations": {ROTATE: "root"}})
    await world.cluster.apply(rotate, "someone")
    await office.keep()
    root = (await files(world))["ca.crt"].decode()
    assert root == office.vault.authority.bundle.root
    assert root.count("BEGIN") == 2


@pytest.mark.usefixtures("keda")
async def test_after_the_loss_of_the_authority_it_is_of_the_new_one(world, office, charter):
    await office.keep()
    await world.cluster.delete(SECRET, SYSTEM, SECRET_NAME)
    async with open_office(world.cluster, charter, world.now) as again:
        await again.keep()
        held = await files(world)
        assert pki.renewal_of(held["tls.crt"], held["tls.key"], again.vault.authority.bundle) > world.now()


async def test_without_kedas_namespace_the_rest_is_kept_and_it_is_said_once(world, office, caplog):
    with caplog.at_level(logging.INFO, "services.operator.identity"):
        await office.keep()
        await office.keep()
        assert await world.published()
        assert caplog.text.count("no certificate for KEDA") == 1
        await world.namespace(KEDA)
        await office.keep()
        await office.keep()
    assert await key_of(world)
    assert caplog.text.count("no certificate for KEDA") == 1
    assert caplog.text.count("issued a certificate for KEDA") == 1


@pytest.mark.usefixtures("keda")
async def test_only_the_one_that_leads_writes_it(world, office):
    leading = asyncio.create_task(office.lead())
    async with asyncio.timeout(20):
        async with aclosing(world.cluster.watch(SECRET, KEDA)) as changes:
            await anext(changes)
    leading.cancel()
    await asyncio.wait({leading})
    await world.cluster.delete(SECRET, KEDA, NAME)
    await office.look()
    with pytest.raises(NotFoundError):
        await secret(world)


@pytest.mark.usefixtures("keda")
async def test_where_no_namespace_is_said_there_is_no_secret(world, charter):
    async with open_office(world.cluster, replace(charter, keda_namespace=""), world.now) as office:
        await office.keep()
    assert not (await world.cluster.list(SECRET, KEDA)).items
