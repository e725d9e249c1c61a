"""Mounted tokens: they stay fresh, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from libs.cluster.kinds import SERVICE_ACCOUNT
from libs.cluster.local import SYSTEM, LocalCluster, open_local
from libs.errors import PreconditionError, UnavailableError
from services.plane.accounts import Accounts


class Sick(LocalCluster):
    """A home that fails to issue tokens as often as it is told."""

    failures: Sequence[Exception] = ()

    async def issue_token(self, namespace, account, audience, seconds):
        if self.failures:
            error, *self.failures = self.failures
            raise error
        return await super().issue_token(namespace, account, audience, seconds)


@pytest.mark.parametrize(
    "error", [UnavailableError("not now"), OSError("the disk is full"), TypeError("a bug")]
)
async def test_a_token_is_renewed_after_a_try_that_failed(tmp_path, error, caplog):
    pauses, asleep, wake = [], asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def sleep(seconds):
        pauses.append(seconds)
        asleep.release()
        await wake.acquire()

    async with open_local(tmp_path / "objects") as cluster:
        cluster.__class__ = Sick
        sick = cast(Sick, cluster)
        accounts = Accounts(cluster, SYSTEM, tmp_path, tmp_path / "identities", sleep=sleep)
        async with accounts.mounted(["plane"]), asyncio.timeout(20):
            token = accounts.credentials("plane").token_file
            assert token is not None
            token.write_text("old")
            sick.failures = [error]
            for _ in range(2):
                await asleep.acquire()
                wake.release()
            await asleep.acquire()
            assert token.read_text().count(".") == 2
    assert pauses[1] < pauses[0] == pauses[2]
    assert any(record.exc_info for record in caplog.records)


async def test_an_account_that_the_plane_needs_is_not_deleted(tmp_path):
    async with open_local(tmp_path / "objects") as cluster:
        accounts = Accounts(cluster, SYSTEM, tmp_path, tmp_path / "identities")
        async with accounts.mounted(["plane"]):
            with pytest.raises(PreconditionError):
                await cluster.delete(SERVICE_ACCOUNT, SYSTEM, "plane")
