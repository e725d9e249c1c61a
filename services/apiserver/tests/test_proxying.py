"""Who asks over HTTPS: the front proxy is believed, and nobody who only looks like it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from libs.cluster import Access, Bearer
from libs.cluster.kinds import CONFIG_MAP
from libs.cluster.local import open_local
from libs.errors import UnauthenticatedError
from libs.testing.mesh import Mesh
from services.apiserver import proxying
from services.apiserver.management import Management
from services.apiserver.proxying import NAME, NAMESPACE, FrontProxy

from .edges import DRAIN, PATIENCE, SERVER, TOKEN, Ca, Kube, Manager, ask, certificate_of, config, der, served

ANN = {"X-Remote-User": "ann"}
NOW = datetime.now(UTC)


@pytest.fixture
async def kube(tmp_path):
    async with open_local(tmp_path / "home") as inner:
        await inner.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield Kube(inner)


@pytest.fixture
def mesh(tmp_path):
    return Mesh(tmp_path)


@pytest.fixture
def ca(tmp_path):
    return Ca(tmp_path)


@pytest.fixture
def management():
    return Manager()


@pytest.fixture
async def edge(mesh, kube, ca, management):
    await kube.says(config(ca))
    async with served(mesh, kube, management) as edge:
        await ready(edge)
        yield edge


async def ready(edge):
    """The ConfigMap was read. What then rotates may still do so."""
    await until(lambda: ask(edge, "GET", "/readyz"), 200)


async def until(asking, code):
    """Asks until that is the answer; in a refused handshake there is none."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await answer(asking) == code:
                return
            await asyncio.sleep(0.02)


async def answer(asking):
    try:
        return (await asking()).code
    except OSError:
        return None


async def refuses(asking):
    """The handshake ends with an alert. A connection may end otherwise while something rotates."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with pytest.raises(OSError, match=r"(?i)alert|reset|closed|eof|pipe") as ended:
                await asking()
            if "alert" in str(ended.value).lower():
                return
            await asyncio.sleep(0.02)


def drain(edge, headers=ANN, shown=None, version="1.1"):
    return ask(edge, "POST", DRAIN, headers, shown=shown, version=version)


@pytest.mark.parametrize("version", ["1.1", "2"])
async def test_the_front_proxy_is_believed(edge, ca, management, version):
    shown = ca.leaf()
    await until(lambda: drain(edge, shown=shown, version=version), 200)
    assert management.asked[-1][0] == Bearer("ann")


async def test_what_it_says_of_a_user_reaches_the_access_review(mesh, kube, ca):
    def nobody(pod):
        raise AssertionError("nobody may be asked")

    await kube.says(config(ca))
    said = [
        *ANN.items(),
        ("X-Remote-Group", "devs"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-Remote-Uid", "u-1"),
        ("X-Remote-Extra-Example.org%2fScopes", "a%20b"),
        ("X-Remote-Extra-Example.org%2fScopes", "c"),
    ]
    shown = ca.leaf()
    async with served(mesh, kube, Management(kube, nobody)) as edge:
        await until(lambda: drain(edge, said, shown), 403)
        refused = (await drain(edge, said, shown)).json
    bearer, access = kube.accesses[-1]
    assert (bearer.username, bearer.groups, bearer.uid) == ("ann", ("devs", "system:authenticated"), "u-1")
    assert bearer.extra == {"example.org/scopes": ("a%20b", "c")}
    assert access == Access("create", "management.agentctl.dev", "agents", "demo", "writer", "drain")
    assert (refused["reason"], refused["details"]["name"]) == ("Forbidden", "writer")
    assert 'User "ann" cannot create resource "agents/drain"' in refused["message"]


@pytest.mark.parametrize("header", ["X-Remote-User", "X-Remote-Group", "x-remote-uid", "X-Remote-Extra-A"])
async def test_a_header_without_a_certificate_is_never_believed(edge, management, header):
    for headers in ({header: "system:masters"}, {header: "system:masters", **TOKEN}):
        refused = await drain(edge, headers)
        assert (refused.code, refused.json["reason"]) == (401, "Unauthorized")
    assert management.asked == []


async def test_a_forged_header_leaves_a_line_and_a_count(edge, caplog):
    from prometheus_client import REGISTRY

    def count():
        return REGISTRY.get_sample_value("agentctl_apiserver_unauthenticated_total", {"why": "header"}) or 0

    before = count()
    await drain(edge)
    assert count() == before + 1
    [line] = [each for each in caplog.records if "401" in each.getMessage()]
    assert line.levelname == "WARNING"
    assert "no front proxy's certificate" in line.getMessage()


async def test_another_name_of_the_same_authority_is_not_believed(edge, ca):
    await until(lambda: drain(edge, shown=ca.leaf()), 200)
    assert (await drain(edge, shown=ca.leaf("kubelet"))).code == 401


async def test_without_allowed_names_any_name_is_believed(mesh, kube, ca, management):
    await kube.says(config(ca, allowed_names=[]))
    async with served(mesh, kube, management) as edge:
        await until(lambda: drain(edge, shown=ca.leaf("whoever")), 200)


async def test_a_certificate_of_an_unknown_authority_ends_in_the_handshake(edge, ca, mesh, tmp_path):
    await until(lambda: drain(edge, shown=ca.leaf()), 200)
    for shown in (Ca(tmp_path).leaf(), certificate_of(mesh.identity("cp/gateway"))):
        await refuses(partial(drain, edge, shown=shown))


async def test_a_certificate_that_is_not_in_date_ends_in_the_handshake(edge, ca):
    await until(lambda: drain(edge, shown=ca.leaf()), 200)
    await refuses(lambda: drain(edge, shown=ca.leaf(end=NOW - timedelta(minutes=1))))


async def test_another_authority_is_in_force_without_a_restart(edge, ca, kube, tmp_path):
    shown, next_ca = ca.leaf(), Ca(tmp_path)
    await until(lambda: drain(edge, shown=shown), 200)
    await kube.says(config(next_ca))
    await until(lambda: drain(edge, shown=next_ca.leaf()), 200)
    await refuses(lambda: drain(edge, shown=shown))


async def test_during_a_rotation_both_authorities_count(edge, ca, kube, tmp_path):
    next_ca = Ca(tmp_path)
    both = config(ca)
    both["data"]["requestheader-client-ca-file"] += next_ca.pem
    await kube.says(both)
    await until(lambda: drain(edge, shown=next_ca.leaf()), 200)
    assert (await drain(edge, shown=ca.leaf())).code == 200


async def test_header_names_are_those_of_the_config_map(edge, ca, kube):
    await kube.says(config(ca, username_headers=["X-Who"]))
    shown = ca.leaf()
    await until(lambda: drain(edge, {"X-Who": "ann"}, shown), 200)
    assert (await drain(edge, {"X-Who": "ann"})).code == 401
    assert (await drain(edge, ANN, shown)).code == 401


async def test_without_the_config_map_only_tokens_count(mesh, kube, ca, management):
    async with served(mesh, kube, management) as edge:
        await ready(edge)
        assert (await drain(edge, shown=ca.leaf())).code == 401
        assert (await drain(edge, TOKEN)).code == 200
    assert kube.tokens == [("good", "")]


async def test_a_config_map_that_is_gone_takes_its_trust_along(edge, ca, kube):
    shown = ca.leaf()
    await until(lambda: drain(edge, shown=shown), 200)
    await kube.delete(CONFIG_MAP, NAMESPACE, NAME)
    await until(lambda: drain(edge, shown=shown), 401)


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer bad"}, {"Authorization": "Basic Z29vZA=="}]
)
async def test_nobody_is_nobody(edge, management, headers):
    assert (await drain(edge, headers)).code == 401
    assert management.asked == []


async def test_tokens_that_take_long_to_review_are_bounded_and_cost_the_front_proxy_nothing(
    edge, ca, kube, monkeypatch
):
    monkeypatch.setattr(proxying, "REVIEWS_AT_ONCE", 2)
    await until(lambda: drain(edge, shown=ca.leaf()), 200)
    kube.review = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        bogus = [
            group.create_task(drain(edge, {"Authorization": f"Bearer bogus {number}"})) for number in range(3)
        ]
        done, waiting = await asyncio.wait(bogus, return_when=asyncio.FIRST_COMPLETED)
        assert ([each.result().code for each in done], len(waiting)) == ([429], 2)
        assert (await drain(edge, shown=ca.leaf())).code == 200
        kube.review.set()
        assert [(await each).code for each in waiting] == [401, 401]
    assert (await drain(edge, TOKEN)).code == 200


async def test_a_certificate_alone_names_nobody(edge, ca):
    shown = ca.leaf()
    await until(lambda: drain(edge, shown=shown), 200)
    assert (await drain(edge, {}, shown)).code == 401
    assert (await drain(edge, {"X-Remote-Group": "system:masters"}, shown)).code == 401


async def test_before_the_config_map_is_read_it_is_not_ready(mesh, kube, management):
    class Mute(Kube):
        async def list(self, *args, **options):
            await asyncio.Event().wait()

    async with served(mesh, Mute(kube), management) as edge:
        assert (await ask(edge, "GET", "/readyz")).code == 503
        assert (await ask(edge, "GET", "/livez")).code == 200


def proxy(ca, **data):
    found = FrontProxy.of(config(ca, **data))
    assert found is not None
    return found


def test_whom_we_verify_ourselves_whatever_tls_did(ca, tmp_path):
    proxy(ca).check(der(ca.leaf()), NOW)
    stranger = Ca(tmp_path)  # of the same name
    for leaf, why in [
        (ca.leaf("kubelet"), "allowed"),
        (ca.leaf(usage=SERVER), "clients"),
        (ca.leaf(usage=None), "extension"),
        (ca.leaf(end=NOW - timedelta(seconds=1)), "not valid at"),
        (ca.leaf(end=NOW + timedelta(days=3)), "not valid at"),
        (stranger.leaf(), "signature"),
    ]:
        with pytest.raises(UnauthenticatedError, match=why):
            proxy(ca).check(der(leaf), NOW)
    with pytest.raises(UnauthenticatedError):
        proxy(ca).check(b"garbage", NOW)


def test_a_config_map_that_makes_no_sense_is_refused(ca):
    for key, value in (("allowed_names", "front"), ("username_headers", [1]), ("group_headers", {})):
        with pytest.raises(ValueError, match="not a list"):
            FrontProxy.of(config(ca, **{key: value}))
    broken = config(ca)
    broken["data"]["requestheader-client-ca-file"] = "garbage"
    with pytest.raises(ValueError, match="PEM"):
        FrontProxy.of(broken)
    assert FrontProxy.of(config(None)) is None


async def test_a_config_map_that_makes_no_sense_is_believed_by_nobody(edge, ca, kube):
    shown = ca.leaf()
    await until(lambda: drain(edge, shown=shown), 200)
    await kube.says(config(ca, allowed_names="front-proxy-client"))
    await until(lambda: drain(edge, shown=shown), 401)
    assert (await drain(edge, TOKEN)).code == 200


def test_values_that_are_not_utf_8_name_nobody(ca):
    with pytest.raises(UnauthenticatedError):
        proxy(ca).named([(b"x-remote-user", b"\xff")])
    bearer = proxy(ca).named([(b"x-remote-user", "Jörg".encode())])
    assert bearer == Bearer("Jörg")
