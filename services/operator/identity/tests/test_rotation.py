"""Authorities in their Secret, and their rotation while a server and a client talk over mTLS."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from libs.cluster.kinds import SECRET
from libs.enrol import Credentials, enrolled
from libs.errors import MeshError, PreconditionError, UnauthenticatedError
from libs.identity import Identity, TrustClass
from libs.mesh import COORDINATION
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.testing.echo import Echo
from services.operator.identity.office import open_office
from services.operator.identity.server import AUDIENCE
from services.operator.identity.vault import OVERLAP, ROTATE, SECRET_NAME, Vault

from .conftest import DOMAIN, SYSTEM, listening, named

pytestmark = pytest.mark.anyio

SAY = "/test.Echo/Say"
HOUR = 3600.0
FAST = 0.02


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (nothing tells when a file was taken over)
            await asyncio.sleep(FAST)


def leaf_of(identity):
    return x509.load_pem_x509_certificates(identity.certificate.read_bytes())[0]


def roots(identity):
    return identity.root.read_text().count("BEGIN")


def pins(identity):
    return identity.intermediate(TrustClass.CONTROL_PLANE).read_text().count("BEGIN")


async def annotate(world, **annotations):
    await world.cluster.apply(
        named("v1", "Secret", SYSTEM, SECRET_NAME, metadata={"annotations": annotations}), "someone"
    )


class Components:
    """Components that enrol with an office, and how the world moves on for them."""

    def __init__(self, world, office, address, folder: Path):
        self.world, self.office, self.address, self.folder = world, office, address, folder
        self.late = dict.fromkeys(("coordination", "provider"), 0.0)  # whose clock is behind

    async def publish(self, *components):
        """A round of the operator, and of the kubelets of these components after it."""
        await self.office.look()
        await self.office.keep()
        for component in components:
            trust = self.folder / f"{component}-trust"
            trust.mkdir(exist_ok=True)
            for name, text in (await self.world.published()).items():
                part = self.folder / "part"
                part.write_text(text)
                part.rename(trust / name)

    async def credentials(self, component) -> Credentials:
        await self.world.account(SYSTEM, component)
        token_file = self.folder / f"{component}.token"
        token_file.write_text(await self.world.cluster.issue_token(SYSTEM, component, AUDIENCE, 3600))
        return Credentials(
            tls_dir=self.folder / component, identity_address=self.address, token_file=token_file,
            trust_dir=self.folder / f"{component}-trust",
        )  # fmt: skip

    @asynccontextmanager
    async def enrolled(self, component):
        credentials = await self.credentials(component)
        clock = lambda: self.world.now() - self.late[component]  # noqa: E731  (read anew each time)
        async with enrolled(credentials, component, clock=clock, check_seconds=FAST) as identity:
            yield identity


@pytest.fixture
async def components(world, charter, tmp_path):
    """Twenty hours ago: certificates of then are good now, so that TLS takes part with its own clock."""
    world.clock = -20 * HOUR
    async with (
        open_office(world.cluster, charter, world.now) as office,
        listening(office, check_seconds=FAST) as served,
    ):
        made = Components(world, office, served.address, tmp_path)
        await made.publish("coordination", "provider")
        yield made


@pytest.mark.parametrize("which", ["root", "control-plane"])
async def test_a_rotation_interrupts_nobody_and_ends_the_old(world, components, tmp_path, which):
    """Server and client take each step one after the other, as where each has a kubelet of its own."""
    echo, said = Echo(), 0
    callers = {SAY: frozenset({"cp/provider"})}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(components.enrolled("coordination"))
        client = await stack.enter_async_context(components.enrolled("provider"))
        served = await stack.enter_async_context(
            serving(
                COORDINATION, server, echo.register,
                callers=callers, check_seconds=FAST, clock=world.now,
            )
        )  # fmt: skip
        channel = await stack.enter_async_context(
            dial(COORDINATION, served.address, client, check_seconds=FAST)
        )
        say = channel.unary_unary(SAY)

        async def talk():
            nonlocal said
            while True:
                assert await say(b"x") == b"x"
                said += 1

        async def heard():
            """Some more calls went well, on whatever connections there are by now."""
            then = said
            await until(lambda: said > then + 20 or talking.done())
            assert not talking.done(), talking.exception()

        talking = asyncio.create_task(talk())
        stack.push_async_callback(asyncio.wait, {talking})
        stack.callback(talking.cancel)
        await heard()
        old = Identity(Path(shutil.copytree(client.folder, tmp_path / "old")))
        first = {each: leaf_of(each).serial_number for each in (server, client)}

        await annotate(world, **{ROTATE: which, OVERLAP: "1h"})
        for component, identity in (("coordination", server), ("provider", client)):
            await components.publish(component)
            await until(lambda identity=identity: pins(identity) == 2)
            await until(lambda identity=identity: roots(identity) == (2 if which == "root" else 1))
            await heard()
        assert {each: leaf_of(each).serial_number for each in (server, client)} == first, "not due yet"

        components.late["provider"] = 16.5 * HOUR
        world.clock += 16.5 * HOUR  # two thirds of a day, and the overlap is over
        await components.publish("coordination", "provider")
        for component, identity in (("coordination", server), ("provider", client)):
            components.late[component] = 0.0
            await until(lambda identity=identity: leaf_of(identity).serial_number != first[identity])
            await heard()
        signer = x509.load_pem_x509_certificates(client.certificate.read_bytes())[1]
        assert signer == components.office.vault.authority.intermediates[TrustClass.CONTROL_PLANE][0]
        shutil.copy(client.root, old.root)
        async with dial(COORDINATION, served.address, old) as late:
            assert await late.unary_unary(SAY)(b"late") == b"late", "the old one is still believed"

        world.clock += 9 * HOUR  # the last leaf of the old authority has run out
        for component, identity in (("coordination", server), ("provider", client)):
            await components.publish(component)
            await until(lambda identity=identity: pins(identity) == 1 == roots(identity))
            await heard()
        shutil.copy(client.root, old.root)
        assert leaf_of(old).not_valid_after_utc.timestamp() > time.time(), "or this would show nothing"
        async with dial(COORDINATION, served.address, old, own_connection=True) as late:
            await refused(late)
        await heard()


async def test_whoever_an_administrator_denies_is_cut_off(world, components):
    echo = Echo()
    callers = {f"/test.Echo/{name}": frozenset({"cp/provider"}) for name in ("Say", "Watch")}
    async with (
        components.enrolled("coordination") as server,
        components.enrolled("provider") as client,
        serving(COORDINATION, server, echo.register, callers=callers, check_seconds=FAST) as served,
        dial(COORDINATION, served.address, client) as channel,
    ):
        watching = channel.unary_stream("/test.Echo/Watch")(b"x")
        assert await watching.read() == b"x"
        denied = {"leaked": f"spiffe://{DOMAIN}/cp/provider"}
        await world.cluster.apply(named("v1", "ConfigMap", SYSTEM, "agentctl-denied", data=denied), "someone")
        await components.publish("coordination")
        with pytest.raises(UnauthenticatedError, match="deny list"):
            await watching.read()
        with pytest.raises(UnauthenticatedError, match="deny list"):
            await channel.unary_unary(SAY)(b"x")


async def refused(channel):
    """Until the server has its new pins, which may be a second away."""
    async with asyncio.timeout(20):
        while True:
            try:
                await channel.unary_unary(SAY)(b"late")
            except MeshError:
                return


async def test_who_is_vouched_for_no_more_renews_at_once(world, components):
    async with components.enrolled("coordination") as identity:
        before = leaf_of(identity).serial_number
        await world.cluster.delete(SECRET, SYSTEM, SECRET_NAME)  # the worst day
        await components.office.vault.open()
        await components.publish("coordination")
        await until(lambda: leaf_of(identity).serial_number != before)


async def test_the_first_of_two_operators_makes_the_authority(world):
    vaults = [Vault(world.cluster, SYSTEM, DOMAIN, world.now) for _ in range(2)]
    await asyncio.gather(*(vault.open() for vault in vaults))
    assert vaults[0].authority.root == vaults[1].authority.root
    again = Vault(world.cluster, SYSTEM, DOMAIN, world.now)
    await again.open()
    assert again.authority.root == vaults[0].authority.root, "and a restart finds it"


async def test_another_domain_does_not_take_an_authority_over(world):
    await Vault(world.cluster, SYSTEM, DOMAIN, world.now).open()
    with pytest.raises(PreconditionError, match=r"the authority of mesh\.test"):
        await Vault(world.cluster, SYSTEM, "else.test", world.now).open()


async def test_two_operators_that_rotate_do_it_once(world):
    vaults = [Vault(world.cluster, SYSTEM, DOMAIN, world.now) for _ in range(2)]
    for vault in vaults:
        await vault.open()
    await annotate(world, **{ROTATE: "users"})
    await asyncio.gather(*(vault.keep() for vault in vaults))
    for vault in vaults:
        await vault.keep()
        assert len(vault.ring.intermediates[TrustClass.USERS]) == 2
    secret = await world.cluster.get(SECRET, SYSTEM, SECRET_NAME)
    assert ROTATE not in secret["metadata"].get("annotations", {})


async def test_a_rotation_that_cannot_be_is_said_once_and_changes_nothing(world, caplog):
    vault = Vault(world.cluster, SYSTEM, DOMAIN, world.now)
    await vault.open()
    for wrong in ({ROTATE: "everything"}, {ROTATE: "users", OVERLAP: "soon"}):
        await annotate(world, **wrong)
        await vault.keep()
        await vault.keep()
    assert caplog.text.count("does nothing") == 2
    assert len(vault.ring.intermediates[TrustClass.USERS]) == 1


async def test_the_vault_renews_by_itself(world):
    vault = Vault(world.cluster, SYSTEM, DOMAIN, world.now)
    await vault.open()
    await vault.keep()
    assert len(vault.ring.intermediates[TrustClass.USERS]) == 1
    world.clock += 250 * 24 * HOUR
    await vault.keep()
    other = Vault(world.cluster, SYSTEM, DOMAIN, world.now)
    await other.open()
    assert len(other.ring.intermediates[TrustClass.USERS]) == 2
