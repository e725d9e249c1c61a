"""How a process gets its certificate, keeps it, and what it does when it gets none."""

from __future__ import annotations

import asyncio
import socket
import stat
from contextlib import asynccontextmanager

import pytest

from libs import pki
from libs.enrol import Credentials, RefusedError, enrolled
from libs.errors import DeniedError, ExhaustedError, InvalidError, UnauthenticatedError, UnavailableError
from libs.identity import Identity, TrustClass
from libs.pki.certificates import new_key
from libs.settings import SettingsError, load

from .issuer import ID, Issuer, Plane, new_authority

FAST = 0.02


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (nothing tells when a file was written)
            await asyncio.sleep(FAST)


def enrol(plane, address, component="", **options):
    return enrolled(plane.credentials(address), component, clock=plane.clock, check_seconds=FAST, **options)


@asynccontextmanager
async def enrolling(plane, address):
    """Enrols beside the block, to which it gives the identity-to-be."""
    made = asyncio.get_running_loop().create_future()

    async def hold():
        async with enrol(plane, address) as identity:
            made.set_result(identity)
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    try:
        yield made
    finally:
        holding.cancel()
        await asyncio.wait({holding})


def key_in(request):
    return pki.thumbprint(pki.proven_key(request.certificate_request.encode()))


async def test_a_process_gets_a_folder_that_is_whole(plane, served):
    async with enrol(plane, served.address) as identity:
        assert pki.own(identity).id == ID
        assert pki.judged(identity, plane.clock()).principal.id == ID
        assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600
        assert plane.issuer.requests[0].token == "the token"
        assert b"PRIVATE" not in plane.issuer.requests[0].SerializeToString()


async def test_a_component_says_which_it_is(plane, served):
    async with enrol(plane, served.address, "coordination") as identity:
        assert pki.own(identity).role == "cp/coordination"


async def test_without_an_address_the_folder_is_somebody_elses(tmp_path):
    async with enrolled(Credentials(tls_dir=tmp_path / "tls")) as identity:
        assert identity == Identity(tmp_path / "tls")
        assert not (tmp_path / "tls").exists()


async def test_a_restart_keeps_key_and_certificate(plane, served):
    async with enrol(plane, served.address) as identity:
        first = identity.certificate.read_bytes()
    async with enrol(plane, served.address) as identity:
        assert identity.certificate.read_bytes() == first
    assert len(plane.issuer.requests) == 1


async def test_a_restart_with_an_old_certificate_asks_with_the_same_key(plane, served):
    async with enrol(plane, served.address):
        pass
    plane.ahead = 3000
    async with enrol(plane, served.address):
        pass
    first, second = plane.issuer.requests
    assert key_in(first) == key_in(second)


async def test_several_identities_of_one_process_share_its_key(plane, served):
    async with (
        enrol(plane, served.address, "coordination", folder="coordination") as one,
        enrol(plane, served.address, "provider", folder="provider") as other,
    ):
        assert (pki.own(one).name, pki.own(other).name) == ("coordination", "provider")
    first, second = plane.issuer.requests
    assert key_in(first) == key_in(second), "one token, one key"


async def test_it_renews_after_two_thirds_with_the_token_of_then(plane, served):
    async with enrol(plane, served.address) as identity:
        first = identity.certificate.read_bytes()
        plane.token.write_text("the next token")
        plane.ahead = 2401
        await until(lambda: identity.certificate.read_bytes() != first)
    assert [request.token for request in plane.issuer.requests[:2]] == ["the token", "the next token"]


async def test_it_follows_the_published_bundle_without_renewing(plane, served):
    async with enrol(plane, served.address) as identity:
        mine, next_one = plane.issuer.authority.bundle, new_authority().bundle
        both = {name: mine.files[name] + next_one.files[name] for name in mine.files}
        for name, text in both.items():
            (plane.trust / name).write_text(text)
        await until(lambda: identity.root.read_text() == both["ca.crt"])
        await until(lambda: identity.intermediate(TrustClass.USERS).read_text() == both["users.crt"])
    assert len(plane.issuer.requests) == 1


async def test_it_renews_at_once_when_nobody_vouches_for_it_any_more(plane, served):
    async with enrol(plane, served.address) as identity:
        plane.rotate()
        plane.publish()
        await until(lambda: pki.renewal(identity, plane.issuer.authority.bundle) > 0)
        assert pki.TrustBundle.read(identity.folder) == plane.issuer.authority.bundle


async def test_the_deny_list_comes_along(plane, served):
    async with enrol(plane, served.address) as identity:
        plane.publish(denied=f"{ID}\n")
        await until(lambda: (identity.folder / "denied").exists())
        assert (identity.folder / "denied").read_text() == f"{ID}\n"
        plane.publish(denied="")
        await until(lambda: (identity.folder / "denied").read_text() == "")
    assert len(plane.issuer.requests) == 1


async def test_it_waits_for_an_operator_that_is_not_there_yet(plane, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with enrolling(plane, f"127.0.0.1:{port}") as made:
        await until(lambda: "no certificate yet" in caplog.text)
        async with plane.serve(port):
            assert pki.own(await made).id == ID


async def test_it_waits_for_the_token_and_for_the_bundle(plane, served, caplog):
    plane.token.unlink()
    bundle = plane.trust.rename(plane.folder / "elsewhere")
    async with enrolling(plane, served.address) as made:
        await until(lambda: f"directory: '{plane.trust}'" in caplog.text)
        bundle.rename(plane.trust)
        await until(lambda: f"directory: '{plane.token}'" in caplog.text)
        plane.token.write_text("the token")
        assert pki.own(await made).id == ID


@pytest.mark.parametrize(
    "error", [UnavailableError("later"), ExhaustedError("slow"), UnauthenticatedError("?")]
)
async def test_what_may_pass_is_tried_again(plane, served, error):
    plane.issuer.errors = [error]
    async with enrol(plane, served.address) as identity:
        assert pki.own(identity).id == ID


@pytest.mark.parametrize("error", [DeniedError("you may not"), InvalidError("not so")])
async def test_a_refusal_for_good_says_who_refused_and_why(plane, served, error):
    plane.issuer.errors = [error]
    with pytest.raises(RefusedError, match=f"refused by {served.address}: {error}"):
        async with enrol(plane, served.address):
            pass


async def test_a_refusal_later_leaves_the_certificate_and_is_tried_again(plane, served, caplog):
    async with enrol(plane, served.address) as identity:
        first = identity.certificate.read_bytes()
        plane.issuer.errors = [DeniedError("not now")]
        plane.ahead = 2401
        await until(lambda: identity.certificate.read_bytes() != first)
        assert "cannot renew: not now" in caplog.text


async def test_only_the_operator_of_the_published_bundle_gets_the_token(plane, tmp_path, caplog):
    (tmp_path / "stranger").mkdir()
    stranger = Plane(Issuer(new_authority()), tmp_path / "stranger")
    async with stranger.serve() as served, enrolling(plane, served.address) as made:
        await until(lambda: caplog.text.count("no certificate yet") > 1)
        assert not made.done()
    assert not stranger.issuer.requests


async def test_a_certificate_for_another_key_is_not_taken(plane, served, caplog):
    plane.issuer.swapped = pki.new_request(new_key())
    async with enrolling(plane, served.address) as made:
        await until(lambda: "not for our key" in caplog.text)
        assert not (plane.folder / "tls" / "tls.crt").exists()
        plane.issuer.swapped = b""
        assert pki.own(await made).id == ID


def test_the_address_needs_a_token_and_a_bundle(tmp_path):
    environment = {"AGENTCTL_TLS_DIR": "/tls", "AGENTCTL_IDENTITY_ADDRESS": "operator:7412"}
    with pytest.raises(SettingsError, match="AGENTCTL_TOKEN_FILE and AGENTCTL_TRUST_DIR"):
        load(Credentials, "AGENTCTL_IDENTITY_", environment)
    whole = environment | {"AGENTCTL_TOKEN_FILE": "/token", "AGENTCTL_TRUST_DIR": "/trust"}
    assert load(Credentials, "AGENTCTL_IDENTITY_", whole).identity_address == "operator:7412"
    assert load(Credentials, "AGENTCTL_IDENTITY_", {"AGENTCTL_TLS_DIR": "/tls"}).identity_address == ""


async def test_a_bug_does_not_end_the_renewing_in_silence(plane, served, caplog):
    is_broken = False

    def clock():
        if is_broken:
            raise KeyError("a bug")
        return plane.clock()

    keeping = enrolled(plane.credentials(served.address), clock=clock, check_seconds=FAST)
    async with keeping as identity:
        first = identity.certificate.read_bytes()
        is_broken = True
        await until(lambda: "after a bug" in caplog.text)
        assert "KeyError: 'a bug'" in caplog.text
        is_broken, plane.ahead = False, 2401
        await until(lambda: identity.certificate.read_bytes() != first)
