"""HEALTH: the plain port says how the agent is, and nothing else."""

from __future__ import annotations

from grpc_health.v1 import health_pb2

from agentctl.agent.v1 import agent_service_pb2 as pb

from ..case import Group, becomes, demand
from ..subject import Subject
from ..world import World

GROUP = Group("health", World.standing)


@GROUP.case("HEALTH-01", "/livez and /readyz answer 200 while the agent works and is ready")
async def _is_healthy(agent: Subject) -> None:
    if agent.process is None and not (await agent.status()).ready:
        demand((await agent.plain("/readyz"))[0] == 503, "it is not ready, and /readyz does not answer 503")
        return
    for path in ("/livez", "/readyz"):

        async def healthy(path: str = path) -> bool:
            return (await agent.plain(path))[0] == 200

        await becomes(healthy, f"{path} does not answer 200", seconds=10)


@GROUP.case("HEALTH-02", "the plain port has /metrics, /livez and /readyz and nothing else: 404")
async def _has_nothing_else(agent: Subject) -> None:
    demand((await agent.plain("/metrics"))[0] == 200, "/metrics does not answer 200")
    for path in ("/", "/healthz/x", "/drain", "/pause", "/manifest", "/debug"):
        status, _ = await agent.plain(path)
        demand(status == 404, f"{path} answers {status}, it has to be 404")


@GROUP.case("HEALTH-03", "/readyz answers 503 while the agent is a lame duck, and /livez 200 all the same")
async def _tells_lame_duck(agent: Subject) -> None:
    agent.needs("LameDuck")
    stub = await agent.steer()
    await stub.LameDuck(pb.LameDuckRequest(enabled=True))
    try:
        status, _ = await agent.plain("/readyz")
        demand(status == 503, f"/readyz of a lame duck answers {status}, it has to be 503")
        status, _ = await agent.plain("/livez")
        demand(status == 200, f"/livez of a lame duck answers {status}, it has to be 200")
    finally:
        await stub.LameDuck(pb.LameDuckRequest(enabled=False))
    status, text = await agent.plain("/readyz")
    demand(status == 200, f"/readyz answers {status} ({text.strip()}) after the lame duck, it has to be 200")


@GROUP.case("HEALTH-04", "grpc.health.v1 says what GetStatus says, also of a lame duck")
async def _tells_health(agent: Subject) -> None:
    ready = (await agent.status()).ready
    await becomes(lambda: _serves(agent, ready), f"its status says ready={ready}, grpc.health another thing")
    agent.needs("LameDuck")
    stub = await agent.steer()
    await stub.LameDuck(pb.LameDuckRequest(enabled=True))
    try:
        await becomes(lambda: _serves(agent, False), "a lame duck is SERVING", seconds=5)
    finally:
        await stub.LameDuck(pb.LameDuckRequest(enabled=False))
    await becomes(lambda: _serves(agent, True), "after the lame duck it is not SERVING", seconds=5)


@GROUP.case("HEALTH-05", "a paused agent is not ready, as its status and /readyz say, until it is resumed")
async def _tells_pause(agent: Subject) -> None:
    agent.needs("Pause")
    agent.needs("Resume")
    stub = await agent.steer()
    await stub.Pause(pb.PauseRequest())
    try:
        demand(not (await agent.status()).ready, "the agent is paused, and its status says that it is ready")
        status, _ = await agent.plain("/readyz")
        demand(status == 503, f"/readyz of a paused agent answers {status}, it has to be 503")
    finally:
        await stub.Resume(pb.ResumeRequest())
    demand((await agent.status()).ready, "the agent is resumed, and its status says that it is not ready")


async def _serves(agent: Subject, wanted: bool) -> bool:
    answer = await agent.health()
    return (answer == health_pb2.HealthCheckResponse.SERVING) is wanted
