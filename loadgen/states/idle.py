"""Services with nothing to do: what they take all the same."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial

from libs.pki import Authority

from .. import processes
from ..channel import Target
from ..child import await_ready, child, free_port
from ..server import Engine, Server
from .footprint import Idle, database, own, watch
from .line import Line
from .place import Place

_SETTLE_SECONDS = 3.0


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
    address = f"127.0.0.1:{free_port()}"
    plain = free_port()
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
        listen = {**place.environment, "PROVIDER_LISTEN": address}
        stack.enter_context(child("services.provider", (), listen, root / "provider.log"))
        log = root / "agent.log"
        agent = stack.enter_context(child("services.agent", (), {**place.environment, **settings}, log))
        await_ready(agent, plain, log)
        time.sleep(_SETTLE_SECONDS)
        (found,) = watch([partial(processes.tree, agent.pid)], sizes.seconds)
    return Line(
        name="idle agent",
        store="",
        figure=f"{found.percent:.2f} % of a core, {found.memory}",
        values=_values(found),
    )


def _values(idle: Idle) -> dict[str, object]:
    return {"percent": idle.percent, **asdict(idle.memory)}
