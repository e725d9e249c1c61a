"""Components of a cluster in one process, as the overlay `single` has them."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
from aiohttp import web

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


@asynccontextmanager
async def api_server(folder: Path, **listed: list[dict[str, object]]) -> AsyncIterator[Path]:
    """An API server that has these objects of ours, by the plural of their kind, and a kubeconfig for it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = listed.get(request.match_info["plural"], [])
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        stream = web.StreamResponse()
        await stream.prepare(request)
        await ended.wait()
        return stream

    ended = asyncio.Event()
    application = web.Application()
    application.router.add_get("/apis/agentctl.dev/v1alpha1/{plural}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        [bound] = runner.addresses
        named = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{bound[1]}"}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
        path = folder / "kubeconfig"
        head = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
        path.write_text(json.dumps({**head, **named}))
        yield path
    finally:
        ended.set()
        await runner.cleanup()


def thing(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1"}
    return {"apiVersion": "agentctl.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


async def test_a_pods_plane_lets_an_agent_ask_the_stand_in_through_the_gateway(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        authority = Authority.create(tmp_path / "pki", DOMAIN)
        for name in ("coordination", "provider", "modelgateway", "mcpgateway"):
            authority.issue(f"spiffe://{DOMAIN}/cp/{name}", tmp_path / "tls" / name, dns_names=["localhost"])
        agent = authority.issue(f"spiffe://{DOMAIN}/ns/{NAMESPACE}/agent/docs/pod/p/u", tmp_path / "agent")
        provider, models, tools, plain = free_port(), free_port(), free_port(), free_port()
        kubeconfig = await stack.enter_async_context(
            api_server(
                tmp_path,
                agents=[thing("Agent", "docs", {"model": {"pool": "small"}, "mcpServers": []})],
                modelpools=[thing("ModelPool", "small", {"models": ["agentctl-extractive"]})],
            )
        )
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "PLANE_HOME": "pod",
            "PLANE_COMPONENTS": "coordination,provider,modelgateway,mcpgateway",
            "PLANE_METRICS_PORT": str(plain),
            "COORDINATION_STORE": "memory",
            "COORDINATION_PORT": str(free_port()),
            "PROVIDER_LISTEN": f"127.0.0.1:{provider}",
            "PROVIDER_TLS": "true",
            "MODELGATEWAY_STORE": "memory",
            "MODELGATEWAY_PORT": str(free_port()),
            "MODELGATEWAY_EDGE_PORT": str(models),
            "MODELGATEWAY_STAND_IN_URL": f"https://localhost:{provider}/v1",
            "MODELGATEWAY_PROVIDER_CA_FILE": str(agent.root),
            "MCPGATEWAY_PORT": str(free_port()),
            "MCPGATEWAY_EDGE_PORT": str(tools),
            "MCPGATEWAY_SERVER_CA_FILE": str(agent.root),
            "AGENTCTL_TLS_DIR": str(tmp_path / "tls"),
        }
        plane = await spawn(stack, tmp_path, "plane", plain, environment)
        await plane.answers("/readyz")
        trusting = ssl.create_default_context(cafile=str(agent.root))
        trusting.load_cert_chain(agent.certificate, agent.key)

        def ask(port: int, path: str, body: dict[str, object]) -> tuple[int, str]:
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            request = Request(f"https://localhost:{port}{path}", json.dumps(body).encode(), headers)
            try:
                answer = urlopen(request, timeout=30, context=trusting)
            except HTTPError as refused:
                answer = refused
            with answer:
                return answer.status, answer.read().decode()

        message = {"role": "user", "content": "hello"}
        status, said = await asyncio.to_thread(ask, models, "/v1/chat/completions", {"messages": [message]})
        assert status == 200, said
        assert json.loads(said)["model"] == "agentctl-extractive"
        initialize = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        status, said = await asyncio.to_thread(ask, tools, "/mcp", initialize)
        assert status == 200, said
        assert "serverInfo" in said
        plane.signal(signal.SIGTERM)
        assert await plane.exit_code() == 0
