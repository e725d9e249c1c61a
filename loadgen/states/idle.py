"""Services with nothing to do: what they take all the same."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from libs.pki import Authority

from .. import processes
from ..channel import Target
from ..server import Engine, Server, ServerError
from .footprint import Idle, database, own, watch
from .line import Line
from .place import Place

_SETTLE_SECONDS = 3.0
_START_SECONDS = 30.0


@dataclass(frozen=True)
class Sizes:
    """How long an idle process is watched."""

    seconds: float


FULL = Sizes(seconds=10.0)
QUICK = Sizes(seconds=1.0)


def coordination(place: Place, engine: Engine, sizes: Sizes) -> Iterator[Line]:
    """A service that nobody calls, and with the memory store an agent that has nothing to do."""
    with place.server(engine) as (target, server):
        time.sleep(_SETTLE_SECONDS)
        alone, postgres = watch([partial(own, server), partial(database, server)], sizes.seconds)
        below = f"; PostgreSQL {postgres.percent:.2f} %, {postgres.memory}"
        yield Line(
            name="idle coordination",
            store=engine.value,
            figure=f"{alone.percent:.2f} % of a core, {alone.memory}"
            + (below if engine is Engine.POSTGRES else ""),
            values={"server": _values(alone), "database": _values(postgres)},
        )
        if engine is Engine.MEMORY:
            yield _agent(place, target, server, sizes)


def _agent(place: Place, target: Target, server: Server, sizes: Sizes) -> Line:
    root = server.data.parent
    authority = Authority.load(root / "pki")
    address = f"127.0.0.1:{_free_port()}"
    plain = _free_port()
    pod = f"spiffe://{authority.domain}/ns/load/agent/idle/pod/idle/{secrets.token_hex(8)}"
    identity = authority.issue(pod, root / "agent")
    settings = {
        "AGENT_QUEUE": "load/idle",
        "AGENT_MODEL": "agentctl-extractive",
        "AGENT_INSTRUCTION": "Summarize.",
        "AGENT_METRICS_PORT": str(plain),
        "AGENTCTL_COORDINATION_ADDRESS": target.address,
        "AGENTCTL_TLS_DIR": str(identity.folder),
        "OPENAI_BASE_URL": f"http://{address}/v1",
    }
    with ExitStack() as stack:
        stack.enter_context(_process("provider", root, place.environment, {"PROVIDER_LISTEN": address}))
        agent = stack.enter_context(_process("agent", root, place.environment, settings))
        _await_ready(agent, plain, root / "agent.log")
        time.sleep(_SETTLE_SECONDS)
        (found,) = watch([partial(processes.tree, agent.pid)], sizes.seconds)
    return Line(
        name="idle agent",
        store="",
        figure=f"{found.percent:.2f} % of a core, {found.memory}",
        values=_values(found),
    )


@contextmanager
def _process(
    service: str, folder: Path, environment: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{service}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"services.{service}"],
            env={**environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we stop it
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise ServerError(
        f"it did not become ready; the end of its log:\n{log.read_text(errors='replace')[-2000:]}"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _values(idle: Idle) -> dict[str, object]:
    return {"percent": idle.percent, **asdict(idle.memory)}
