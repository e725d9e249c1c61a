"""The agent gets its certificate by its token, and says so when it gets none."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from libs import pki
from libs.enrol.tests.issuer import Issuer, Plane, new_authority
from libs.enrol.tests.process import process
from libs.errors import DeniedError
from libs.identity import Identity

ENVIRONMENT = {
    "AGENT_QUEUE": "demo/docs",
    "AGENT_MODEL": "m",
    "AGENT_INSTRUCTION": "Summarize.",
    "AGENT_PORT": "0",
    "AGENT_METRICS_PORT": "0",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
}


@pytest.fixture
def plane(tmp_path):
    return Plane(Issuer(new_authority()), tmp_path)


async def test_it_enrols_by_itself(plane):
    identity = Identity(plane.folder / "tls")
    async with plane.serve() as served, process("services.agent", plane, served.address, ENVIRONMENT):
        async with asyncio.timeout(30):
            while not identity.certificate.exists():  # noqa: ASYNC110  (written by another process)
                await asyncio.sleep(0.05)
        assert pki.own(identity).id == "spiffe://mesh.test/ns/demo/agent/worker/pod/worker-1/uid"


async def test_a_refusal_for_good_ends_it(plane):
    plane.issuer.errors = [DeniedError("not you")]
    async with (
        plane.serve() as served,
        process("services.agent", plane, served.address, ENVIRONMENT) as refused,
    ):
        async with asyncio.timeout(30):
            _, said = await refused.communicate()
        assert refused.returncode == 2
        assert f"refused by {served.address}: not you" in said.decode()


async def test_sigterm_ends_it_while_it_waits_to_enrol(plane):
    """Also as the first process of a container, to which the kernel does not do that."""
    async with plane.serve() as served:
        address = served.address
    async with process("services.agent", plane, address, ENVIRONMENT) as waiting:
        async with asyncio.timeout(30):
            while not handles(waiting.pid, signal.SIGTERM):  # noqa: ASYNC110  (another process)
                await asyncio.sleep(0.05)
            waiting.terminate()
            assert await waiting.wait() == 143


def handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)
