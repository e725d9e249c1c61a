"""The whole operator, on a store: it has its own certificate, leads, publishes whom to trust, and lets go."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from libs import pki
from libs.cluster.kinds import AGENT, CONFIG_MAP, CRON_JOB, LEASE
from libs.errors import UnavailableError
from libs.identity import Identity
from services.operator.operating import operating

from .world import Through, World


async def test_it_certifies_itself_and_publishes_whom_to_trust_where_agents_are(local: World):
    folder = local.folder / "tls"
    folder.mkdir(mode=0o700)
    settings = replace(local.settings(), tls_dir=folder, port=0, identity_port=0, coordination_address="")
    async with operating(settings, local.cluster) as operator:
        with anyio.fail_after(10):
            await operator.cache.synced()
        await operator.ready()
        assert pki.own(Identity(folder)).role == "cp/operator"
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        await local.accepted(AGENT, "x", status="True")
        trust = await local.get(CONFIG_MAP, "agentctl-trust")
        assert trust["data"]["ca.crt"] == (folder / "ca.crt").read_text()
    lease = await local.cluster.get(LEASE, local.system, "agentctl-operator")
    assert not lease["spec"].get("holderIdentity")


async def test_it_is_not_ready_before_everything_was_listed_once(local: World):
    class Deaf(Through):
        async def list(self, kind, namespace="", labels="", *, name=""):
            if kind is AGENT:
                raise UnavailableError("no answer")
            return await super().list(kind, namespace, labels, name=name)

    folder = local.folder / "tls"
    folder.mkdir(mode=0o700)
    settings = replace(local.settings(), tls_dir=folder, port=0, identity_port=0, coordination_address="")
    async with operating(settings, Deaf(local.cluster)) as operator:
        await local.until(lambda: operator.cache.ages()["Pod"] < float("inf"))
        with pytest.raises(UnavailableError, match="not listed yet: Agent"):
            await operator.ready()
