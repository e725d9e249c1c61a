"""Coordination as a stranger meets it: stock grpcurl, good and bad certificates, and what the log says."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from libs.identity import Identity, TrustClass
from libs.pki import Authority

from .fleet import DOMAIN, Process, free_port, spawn

SERVICE = "agentctl.coordination.v1.CoordinationService"
GRPCURL = Path(sys.executable).with_name("grpcurl")
POD = f"spiffe://{DOMAIN}/ns/demo/agent/docs/pod/docs-0/uid-1"
PRODUCER = f"spiffe://{DOMAIN}/ns/demo/producer/intake"
USER = f"spiffe://{DOMAIN}/ns/demo/user/tester"


@dataclass
class Plane:
    """Coordination, whom it trusts, and its log."""

    folder: Path
    authority: Authority
    process: Process
    address: str
    front: str

    def issue(self, spiffe_id: str, **options: Any) -> Identity:
        folder = self.folder / spiffe_id.rpartition("://")[2].replace("/", "-")
        return self.authority.issue(spiffe_id, folder, **options)

    async def grpcurl(
        self, identity: Identity | None, *words: str, data: object = None
    ) -> tuple[int, str, str]:
        """Exit code, output and errors of grpcurl, called with that certificate."""
        trust = self.folder / "coordination" / "ca.crt"
        arguments = ["-cacert", str(trust), "-authority", f"coordination.cp.{DOMAIN}"]
        arguments += ["-connect-timeout", "2", "-max-time", "10"]
        if identity is not None:
            arguments += ["-cert", str(identity.certificate), "-key", str(identity.key)]
        if data is not None:
            arguments += ["-d", json.dumps(data)]
        process = await asyncio.create_subprocess_exec(
            GRPCURL,
            *arguments,
            self.address,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        return process.returncode or 0, out.decode(), errors.decode()

    async def call(self, identity: Identity, method: str, data: object) -> Any:
        """The answer to a call that must succeed."""
        code, out, errors = await self.grpcurl(identity, f"{SERVICE}/{method}", data=data)
        assert code == 0, errors
        return json.loads(out)

    async def refused(self, identity: Identity | None, words: str) -> str:
        """What grpcurl says of a Claim that must be refused with these words."""
        code, out, errors = await self.grpcurl(identity, f"{SERVICE}/Claim", data={"queues": ["demo/docs"]})
        assert (code, out) != (0, "")
        assert words in errors, errors
        return errors

    def log(self) -> list[dict[str, Any]]:
        """The log, line by line. What gRPC's C core prints of handshakes is not ours and not JSON."""
        lines = self.process.log.read_text().splitlines()
        return [json.loads(line) for line in lines if "ssl_transport_security" not in line]

    def refusals(self) -> list[dict[str, Any]]:
        return [line for line in self.log() if line.get("code") in ("UNAUTHENTICATED", "PERMISSION_DENIED")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["h2corn", "grpcio"])
async def it(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Plane]:
    authority = Authority.create(tmp_path / "pki", DOMAIN)
    own = authority.issue(f"spiffe://{DOMAIN}/cp/coordination", tmp_path / "coordination")
    port, plain = free_port(), free_port()
    settings = {
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": str(port),
        "COORDINATION_METRICS_PORT": str(plain),
        "AGENTCTL_TLS_DIR": str(own.folder),
        "AGENTCTL_FRONT": request.param,
    }
    async with AsyncExitStack() as stack:
        process = await spawn(stack, tmp_path, "coordination", plain, settings)
        await process.answers("/readyz")
        yield Plane(tmp_path, authority, process, f"127.0.0.1:{port}", request.param)


async def test_grpcurl_lists_and_describes_by_reflection(it: Plane) -> None:
    user = it.issue(USER)
    code, out, errors = await it.grpcurl(user, "list")
    assert (code, errors) == (0, "")
    assert {SERVICE, "grpc.health.v1.Health"} <= set(out.split())
    code, out, _ = await it.grpcurl(user, "describe", SERVICE)
    assert code == 0
    assert "rpc Claim ( .agentctl.coordination.v1.ClaimRequest )" in out
    code, out, _ = await it.grpcurl(user, "describe", "agentctl.coordination.v1.Grant")
    assert code == 0
    assert "int64 token = 2;" in out
    code, out, _ = await it.grpcurl(user, "grpc.health.v1.Health/Check")
    assert json.loads(out) == {"status": "SERVING"}


async def test_grpcurl_submits_claims_and_acks(it: Plane) -> None:
    producer, agent = it.issue(PRODUCER), it.issue(POD)
    payload = base64.b64encode(b"hello").decode()
    submitted = await it.call(producer, "Submit", {"queue": "demo/docs", "items": [{"payload": payload}]})
    (verdict,) = submitted["verdicts"]
    assert verdict["status"] == "SUBMIT_STATUS_ACCEPTED"
    claimed = await it.call(agent, "Claim", {"queues": ["demo/docs"]})
    (grant,) = claimed["grants"]
    assert (grant["item_id"], grant["payload"], grant["attempt"]) == (verdict["item_id"], payload, 1)
    result = base64.b64encode(b"done").decode()
    ack = {"item_id": grant["item_id"], "token": grant["token"], "result": result}
    assert await it.call(agent, "Ack", {"acks": [ack]}) == {"verdicts": [{"status": "LEASE_STATUS_OK"}]}
    (item,) = (await it.call(producer, "GetItems", {"item_ids": [grant["item_id"]]}))["items"]
    assert (item["state"], item["result"], item["holder"]) == ("WORK_STATE_SUCCEEDED", result, POD)


async def test_grpcurl_refuses_json_fields_that_are_not_there(it: Plane) -> None:
    code, _, errors = await it.grpcurl(
        it.issue(USER), f"{SERVICE}/Claim", data={"queues": ["demo/docs"], "colour": "red"}
    )
    assert code != 0
    assert "no known field named colour" in errors


async def test_who_shows_no_certificate_is_refused_and_logged(it: Plane) -> None:
    if it.front == "grpcio":  # it can refuse in the handshake only
        await it.refused(None, "Failed to dial target host")
        return
    await it.refused(None, "Unauthenticated")
    line = it.refusals()[-1]
    assert line["msg"] == "UNAUTHENTICATED: no client certificate"
    assert line["peer"].startswith("127.0.0.1:")


@pytest.mark.parametrize("what", ["of another authority", "expired"])
async def test_a_certificate_that_is_not_good_does_not_get_past_the_handshake(it: Plane, what: str) -> None:
    """No log line: neither front says anything of a handshake that failed, beyond gRPC's own stderr."""
    if what == "expired":
        yesterday = datetime.now(UTC) - timedelta(days=1)
        identity = it.issue(USER, now=yesterday, lifetime=timedelta(hours=1))
    else:
        identity = Authority.create(it.folder / "other-pki", DOMAIN).issue(USER, it.folder / "stranger")
    await it.refused(identity, "Failed to dial target host")
    assert not [line for line in it.log() if "caller" in line]


async def test_a_certificate_by_the_intermediate_of_another_class_is_refused_and_logged(it: Plane) -> None:
    classes = dict(it.authority.intermediates)
    classes[TrustClass.USERS] = classes[TrustClass.WORKLOADS]
    swapped = Authority(it.authority.domain, it.authority.root, classes)
    root_id = f"spiffe://{DOMAIN}/user/root"
    forged = swapped.issue(root_id, it.folder / "forged")
    errors = await it.refused(forged, "Unauthenticated")
    line = it.refusals()[-1]
    assert line["code"] == "UNAUTHENTICATED"
    assert line["level"] == "WARNING"
    assert root_id in line["msg"]
    assert line["msg"].removeprefix("UNAUTHENTICATED: ") in errors


async def test_a_principal_that_may_not_is_denied_and_logged(it: Plane) -> None:
    producer = it.issue(PRODUCER)
    errors = await it.refused(producer, "PermissionDenied")
    said = f"{PRODUCER} may not call /{SERVICE}/Claim"
    assert said in errors
    (line,) = it.refusals()
    assert line["msg"] == f"PERMISSION_DENIED: {said}"
    assert (line["caller"], line["method"]) == (PRODUCER, f"/{SERVICE}/Claim")
    assert (line["level"], line["service"]) == ("WARNING", "coordination")


async def test_a_queue_of_another_namespace_is_not_found_and_logged(it: Plane) -> None:
    foreign = it.issue(f"spiffe://{DOMAIN}/ns/other/agent/docs/pod/docs-0/uid-9")
    errors = await it.refused(foreign, "NotFound")
    assert "no queue demo/docs" in errors
    (line,) = [line for line in it.log() if line.get("code") == "NOT_FOUND"]
    assert line["caller"] == f"spiffe://{DOMAIN}/ns/other/agent/docs/pod/docs-0/uid-9"
