"""Components of a cluster in one process, as the overlay `single` has them."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.pki import Authority
from libs.work import Work, connect

from .fleet import DOMAIN, QUEUE, free_port, spawn, until

NAMESPACE, _, NAME = QUEUE.partition("/")


async def test_a_pods_plane_tells_keda_what_its_coordination_has_and_ends_well(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", DOMAIN)
    for name in ("coordination", "scaler"):
        service = f"{name}.agentctl-system.svc"
        authority.issue(f"spiffe://{DOMAIN}/cp/{name}", tmp_path / "tls" / name, dns_names=[service])
    keda = authority.issue(f"spiffe://{DOMAIN}/cp/keda", tmp_path / "keda")
    someone = authority.issue(f"spiffe://{DOMAIN}/ns/{NAMESPACE}/user/tester", tmp_path / "someone")
    coordination, scaler, plain = free_port(), free_port(), free_port()
    environment = {
        "PLANE_HOME": "pod",
        "PLANE_COMPONENTS": "coordination,scaler",
        "PLANE_METRICS_PORT": str(plain),
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": str(coordination),
        "SCALER_PORT": str(scaler),
        "AGENTCTL_COORDINATION_ADDRESS": f"127.0.0.1:{coordination}",
        "AGENTCTL_TLS_DIR": str(tmp_path / "tls"),
    }
    credentials = grpc.ssl_channel_credentials(
        keda.root.read_bytes(), keda.key.read_bytes(), keda.certificate.read_bytes()
    )
    named = (("grpc.ssl_target_name_override", "scaler.agentctl-system.svc"),)
    async with AsyncExitStack() as stack:
        plane = await spawn(stack, tmp_path, "plane", plain, environment)
        await plane.answers("/readyz")
        channel = grpc.aio.secure_channel(f"127.0.0.1:{scaler}", credentials, named)
        stub = pb_grpc.ExternalScalerStub(await stack.enter_async_context(channel))
        client = await stack.enter_async_context(connect(f"127.0.0.1:{coordination}", someone))
        await client.submit(QUEUE, Work(b"a", content_type="text/plain"))

        async def is_active() -> bool:
            try:
                ref = pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE)
                return bool((await stub.IsActive(ref, wait_for_ready=True)).result)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False  # it does not know yet

        await until(is_active)
        plane.signal(signal.SIGTERM)
        assert await plane.exit_code() == 0
