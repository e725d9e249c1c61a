"""The plain port of `--metrics-addr`: /metrics, /healthz, /readyz."""

from __future__ import annotations

from aiohttp import web

from .options import host_and_port
from .supervisor import Supervisor


async def serve(supervisor: Supervisor) -> web.AppRunner:
    """Listens until the runner is cleaned up. Raises OSError when the address is taken."""

    async def healthz(request: web.Request) -> web.Response:
        if supervisor.healthy:
            return web.Response(text=f"ok tick_age_ms={round(supervisor.tick_age * 1000)}\n")
        return web.Response(status=503, text="draining\n" if supervisor.draining else "stalled\n")

    async def readyz(request: web.Request) -> web.Response:
        if supervisor.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=supervisor.metrics.render())

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    host, port = host_and_port(supervisor.options.metrics_addr or "")
    await web.TCPSite(runner, host, port).start()
    address = "{}:{}".format(*runner.addresses[0])
    supervisor.journal.emit("info", "metrics.serving", addr=address)
    return runner
