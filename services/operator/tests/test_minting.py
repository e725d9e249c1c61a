"""A weaker token for a neighbour in the pod: what stands in the folder, and when it is replaced."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from libs.cluster.kinds import CONFIG_MAP, SERVICE_ACCOUNT
from libs.errors import InvalidError, NotFoundError, UnavailableError
from services.operator.minting import LIFE_SECONDS, RENEW_SECONDS, Mint
from services.operator.operating import operating
from services.operator.settings import Settings

from .world import Through, World

AUDIENCE = "https://kubernetes.default.svc"


class Issuing(Through):
    """Has an audience of its own, as an API server has, and no answer for the first `failures` requests."""

    def __init__(self, inner, failures=0):
        super().__init__(inner)
        self.failures = failures
        self.asked = []

    async def issue_token(self, namespace, account, audience, seconds):
        self.asked.append((namespace, account, audience, seconds))
        if len(self.asked) <= self.failures:
            raise UnavailableError("no answer")
        return await super().issue_token(namespace, account, audience or AUDIENCE, seconds)


@pytest.fixture
async def system(local: World) -> World:
    for kind, name, parts in (
        (SERVICE_ACCOUNT, "plane-api", {}),
        (CONFIG_MAP, "kube-root-ca.crt", {"data": {"ca.crt": "the cluster's root"}}),
    ):
        metadata = {"namespace": local.system, "name": name}
        thing = {"apiVersion": "v1", "kind": kind.name, "metadata": metadata, **parts}
        await local.cluster.create(thing)
    return local


async def test_the_folder_is_what_kubernetes_itself_would_mount(system: World, tmp_path: Path):
    cluster = Issuing(system.cluster)
    await Mint(cluster, system.system, "plane-api", tmp_path).mint()
    assert cluster.asked == [(system.system, "plane-api", "", LIFE_SECONDS)]
    bearer = await system.cluster.review_token((tmp_path / "token").read_text(), AUDIENCE)
    assert bearer.service_account == (system.system, "plane-api")
    assert (tmp_path / "ca.crt").read_text() == "the cluster's root"
    assert (tmp_path / "namespace").read_text() == system.system
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


async def test_a_token_is_replaced_at_60_percent_of_its_life_and_sooner_tried_again_if_there_is_none(
    system: World, tmp_path: Path
):
    class EnoughError(Exception):
        """Ends what has no end."""

    pauses, tokens = [], []

    async def sleep(seconds):
        pauses.append(seconds)
        tokens.append((tmp_path / "token").read_text() if "token" in os.listdir(tmp_path) else "")
        if len(pauses) == 5:
            raise EnoughError

    with pytest.raises(EnoughError):
        await Mint(Issuing(system.cluster, failures=3), system.system, "plane-api", tmp_path, sleep).run()
    assert pauses == [0.5, 1.0, 2.0, RENEW_SECONDS, RENEW_SECONDS]
    assert RENEW_SECONDS == 2160
    assert tokens[:3] == ["", "", ""]
    assert tokens[3] != tokens[4]


async def test_without_the_account_there_is_no_token(local: World, tmp_path: Path):
    with pytest.raises(NotFoundError):
        await Mint(Issuing(local.cluster), local.system, "plane-api", tmp_path).mint()
    assert "token" not in os.listdir(tmp_path)


async def test_the_operator_mints_where_it_is_told_to(system: World, tmp_path: Path):
    tls, shared = tmp_path / "tls", tmp_path / "api"
    tls.mkdir(mode=0o700)
    shared.mkdir()
    settings = replace(
        system.settings(),
        tls_dir=tls, port=0, identity_port=0, coordination_address="", mint=f"plane-api:{shared}",
    )  # fmt: skip
    async with operating(settings, Issuing(system.cluster)):
        with anyio.fail_after(10):
            await system.until((shared / "token").exists)


async def test_a_home_without_an_audience_of_its_own_says_so(system: World):
    with pytest.raises(InvalidError):
        await system.cluster.issue_token(system.system, "plane-api", "", 600)


@pytest.mark.parametrize("home", [pytest.param("kubernetes", marks=pytest.mark.cluster)], indirect=True)
async def test_an_api_server_takes_the_token_as_one_for_itself(home: World, tmp_path: Path):
    await home.there(CONFIG_MAP, "kube-root-ca.crt")
    await home.there(SERVICE_ACCOUNT, "default")
    await Mint(home.cluster, home.namespace, "default", tmp_path).mint()
    bearer = await home.cluster.review_token((tmp_path / "token").read_text(), "")
    assert bearer.service_account == (home.namespace, "default")
    assert "BEGIN CERTIFICATE" in (tmp_path / "ca.crt").read_text()


@pytest.mark.parametrize("said", ["plane-api", "plane-api:", ":/run/agentctl/api"])
def test_who_and_where_have_to_be_said(said: str, tmp_path: Path):
    with pytest.raises(ValueError, match="ACCOUNT:FOLDER"):
        Settings(tls_dir=tmp_path, mint=said)
