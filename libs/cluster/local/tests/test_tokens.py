"""Tokens: whom one belongs to, and every way not to be believed. Who may do what."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.cluster import Access
from libs.cluster.kinds import NAMESPACE, POD, SERVICE_ACCOUNT
from libs.cluster.local import ADMINISTRATOR, SYSTEM, open_local
from libs.cluster.local.tokens import ISSUER, signing_key
from libs.errors import InvalidError, NotFoundError, UnauthenticatedError

from .things import pod, thing

AUDIENCE = "agentctl-identity"


@pytest.fixture
async def worker(cluster):
    await cluster.create(thing(SERVICE_ACCOUNT, "agents"))
    said = pod()
    said["spec"]["serviceAccountName"] = "agents"
    return await cluster.create(said)


def claims_of(token):
    return jwt.decode(token, options={"verify_signature": False})


async def test_a_pod_token_says_whose_it_is(cluster, worker, clock):
    token = await cluster.issue_pod_token(worker, AUDIENCE, 600)
    bearer = await cluster.review_token(token, AUDIENCE)
    account = await cluster.get(SERVICE_ACCOUNT, "default", "agents")
    assert bearer.service_account == ("default", "agents")
    assert bearer.uid == account["metadata"]["uid"]
    assert (bearer.pod, bearer.pod_uid) == ("worker", worker["metadata"]["uid"])
    assert bearer.expires_at == clock.now + 600
    assert bearer.groups[1] == "system:serviceaccounts:default"
    assert bearer == await cluster.review_token(token, AUDIENCE)


async def test_every_token_has_an_id_of_its_own(cluster, worker):
    one, two = [await cluster.issue_pod_token(worker, AUDIENCE, 600) for _ in range(2)]
    ids = {(await cluster.review_token(token, AUDIENCE)).token_id for token in (one, two)}
    assert len(ids) == 2


async def test_the_claims_are_those_of_kubernetes(cluster, worker):
    claims = claims_of(await cluster.issue_pod_token(worker, AUDIENCE, 600))
    assert claims["sub"] == "system:serviceaccount:default:agents"
    assert claims["aud"] == [AUDIENCE]
    assert set(claims["kubernetes.io"]) == {"namespace", "pod", "serviceaccount"}
    assert claims["kubernetes.io"]["pod"] == {"name": "worker", "uid": worker["metadata"]["uid"]}


async def test_a_token_without_a_pod(cluster):
    bearer = await cluster.review_token(
        await cluster.issue_token("default", "default", AUDIENCE, 60), AUDIENCE
    )
    assert bearer.service_account == ("default", "default")
    assert (bearer.pod, bearer.pod_uid) == ("", "")


async def test_a_token_outlives_a_restart(folder):
    async with open_local(folder) as cluster:
        token = await cluster.issue_token("default", "default", AUDIENCE, 60)
    async with open_local(folder) as cluster:
        assert (await cluster.review_token(token, AUDIENCE)).service_account == ("default", "default")


async def test_nobody_gets_a_token_of_what_is_not_there(cluster, worker):
    with pytest.raises(NotFoundError):
        await cluster.issue_token("default", "absent", AUDIENCE, 60)
    for audience, seconds in (("", 60), (AUDIENCE, 0), (AUDIENCE, -1)):
        with pytest.raises(InvalidError):
            await cluster.issue_token("default", "default", audience, seconds)


async def refused(cluster, token, audience=AUDIENCE):
    with pytest.raises(UnauthenticatedError) as caught:
        await cluster.review_token(token, audience)
    return str(caught.value)


async def test_a_token_for_another_audience_is_refused(cluster, worker):
    token = await cluster.issue_pod_token(worker, "another", 600)
    assert "udience" in await refused(cluster, token)
    assert await cluster.review_token(token, "another")


async def test_an_expired_token_is_refused_at_that_very_second(cluster, worker, clock):
    token = await cluster.issue_pod_token(worker, AUDIENCE, 600)
    clock.now += 599
    assert await cluster.review_token(token, AUDIENCE)
    clock.now += 1
    assert "expired" in await refused(cluster, token)


async def test_the_token_of_a_pod_that_drains_is_good_until_a_minute_after_its_grace(cluster, clock):
    worker = pod(finalizers=["test/node"])
    worker["spec"]["terminationGracePeriodSeconds"] = 7200
    token = await cluster.issue_pod_token(await cluster.create(worker), AUDIENCE, 86_400)
    await cluster.delete(POD, "default", "worker")
    clock.now += 7200 + 60
    assert (await cluster.review_token(token, AUDIENCE)).pod == "worker"
    clock.now += 1
    assert "gone" in await refused(cluster, token)


async def test_a_forged_token_is_refused(cluster, worker):
    token = await cluster.issue_pod_token(worker, AUDIENCE, 600)
    claims = claims_of(token)
    header, payload, signature = token.split(".")
    other = claims | {"sub": "system:serviceaccount:agentctl-system:administrator"}
    changed = base64.urlsafe_b64encode(json.dumps(other).encode()).rstrip(b"=").decode()
    for forged in (
        jwt.encode(claims, Ed25519PrivateKey.generate(), "EdDSA"),
        jwt.encode(claims, "", "none"),
        jwt.encode(claims, "a secret that is long enough for HS256", "HS256"),
        f"{header}.{changed}.{signature}",
        f"{header}.{payload}.",
        "",
        "no token",
        token[:-4],
    ):
        assert "not valid" in await refused(cluster, forged)
    assert await cluster.review_token(token, AUDIENCE)


@pytest.mark.parametrize("claim", ["iss", "sub", "aud", "exp", "iat", "nbf", "jti"])
async def test_a_token_without_a_claim_is_refused(cluster, folder, worker, claim):
    claims = claims_of(await cluster.issue_pod_token(worker, AUDIENCE, 600))
    del claims[claim]
    await refused(cluster, jwt.encode(claims, signing_key(folder / "token.key"), "EdDSA"))


async def test_a_token_of_another_issuer_or_of_tomorrow_is_refused(cluster, folder, worker, clock):
    claims = claims_of(await cluster.issue_pod_token(worker, AUDIENCE, 600))
    assert claims["iss"] == ISSUER
    for other in ({"iss": "https://another"}, {"nbf": int(clock.now) + 60}):
        await refused(cluster, jwt.encode(claims | other, signing_key(folder / "token.key"), "EdDSA"))


async def test_the_token_of_a_pod_that_is_gone_is_refused(cluster, worker):
    token = await cluster.issue_pod_token(worker, AUDIENCE, 600)
    await cluster.delete(POD, "default", "worker")
    assert "Pod worker is gone" in await refused(cluster, token)
    await cluster.create(pod())
    assert "Pod worker is gone" in await refused(cluster, token)


async def test_the_token_of_an_account_that_is_gone_is_refused(cluster, worker):
    token = await cluster.issue_pod_token(worker, AUDIENCE, 600)
    await cluster.delete(SERVICE_ACCOUNT, "default", "agents")
    assert "ServiceAccount agents is gone" in await refused(cluster, token)
    await cluster.create(thing(SERVICE_ACCOUNT, "agents"))
    assert "ServiceAccount agents is gone" in await refused(cluster, token)


def test_a_key_that_is_half_written_is_made_anew(tmp_path):
    path: Path = tmp_path / "token.key"
    path.with_suffix(".part").write_bytes(b"-----BEGIN")
    assert signing_key(path).public_key() == signing_key(path).public_key()


@pytest.mark.parametrize(
    ("account", "resource", "where", "expected"),
    [
        (("default", "default"), "producers", "default", True),
        (("default", "default"), "users", "default", True),
        (("default", "default"), "producers", "other", False),
        (("default", "default"), "administrators", "", False),
        (("default", "default"), "administrators", "default", False),
        ((SYSTEM, "default"), "users", SYSTEM, False),
        ((SYSTEM, "default"), "administrators", "", False),
        ((SYSTEM, ADMINISTRATOR), "administrators", "", True),
        ((SYSTEM, ADMINISTRATOR), "users", "other", True),
    ],
)
async def test_who_may_ask_for_which_identity(cluster, account, resource, where, expected):
    await cluster.create(thing(NAMESPACE, "other"))
    bearer = await cluster.review_token(await cluster.issue_token(*account, AUDIENCE, 60), AUDIENCE)
    access = Access("request", "identity.agentctl.dev", resource, where)
    assert await cluster.review_access(bearer, access) == expected


@pytest.mark.parametrize("where", ["default", "other"])
@pytest.mark.parametrize(
    ("verb", "group", "resource", "subresource"),
    [
        ("get", "", "secrets", ""),
        ("impersonate", "", "serviceaccounts", ""),
        ("create", "management.agentctl.dev", "agents", "drain"),
        ("create", "management.agentctl.dev", "agentfleets", "lame-duck"),
        ("create", "management.agentctl.dev", "agents", "cancel"),
        ("create", "management.agentctl.dev", "agentfleets", "pause"),
        ("create", "management.agentctl.dev", "agents", "resume"),
        ("get", "management.agentctl.dev", "agentfleets", "status"),
    ],
)
async def test_an_account_edits_and_manages_in_its_own_namespace_only(
    cluster, worker, verb, group, resource, subresource, where
):
    access = Access(verb, group, resource, where, "x", subresource)
    assert await cluster.review_access(await account(cluster), access) == (where == "default")
    assert await cluster.review_access(await account(cluster, SYSTEM, ADMINISTRATOR), access)
    assert not await cluster.review_access(await in_pod(cluster, worker), access)


@pytest.mark.parametrize(
    "access",
    [
        Access("get", "identity.agentctl.dev", "users", "default"),
        Access("request", "", "users", "default"),
        Access("list", "", "secrets", "default"),
        Access("get", "management.agentctl.dev", "agents", "default", "x"),
        Access("create", "management.agentctl.dev", "agents", "default", "x"),
        Access("create", "management.agentctl.dev", "agents", "default", "x", "status"),
        Access("override", "agentctl.dev", "agents", "default", "x", "trifecta"),
        Access("override", "agentctl.dev", "agentfleets", "default", "x", "trifecta"),
    ],
)
async def test_all_else_is_the_administrators(cluster, access):
    assert not await cluster.review_access(await account(cluster), access)
    assert await cluster.review_access(await account(cluster, SYSTEM, ADMINISTRATOR), access)


async def account(cluster, namespace="default", name="default"):
    return await cluster.review_token(await cluster.issue_token(namespace, name, AUDIENCE, 60), AUDIENCE)


async def in_pod(cluster, worker):
    return await cluster.review_token(await cluster.issue_pod_token(worker, AUDIENCE, 60), AUDIENCE)
