"""What is measured: no gateway, ours, LiteLLM's proxy. Processes of this machine, gone with the block."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.identity import Identity
from libs.pki import Authority

from .. import processes
from ..child import ServerError, await_ready, child, end_of, free_port
from ..processes import Usage
from .closed import Target
from .cluster import AGENT_NAME, NAMESPACE, kubeconfig, objects
from .stub import MODEL

DIRECT, OURS, LITELLM = "direct", "ours", "LiteLLM"
_DOMAIN = "load.agentctl"
_START_SECONDS = 180
_STOP_SECONDS = 20
VARIANTS = {
    OURS: ("memory", False),
    "ours, 2 budgets, memory": ("memory", True),
    "ours, 2 budgets, PostgreSQL": ("embedded", True),
}
"""Of our gateway: the store, and whether there are budgets."""


@dataclass(frozen=True)
class Side:
    """One way to the stub."""

    name: str
    target: Target
    pid: int | None = None
    """Of the gateway; None: there is none between."""
    data: Path | None = None
    """Where it has a PostgreSQL."""

    def usage(self) -> tuple[Usage, Usage]:
        """Of the gateway until now, and of its PostgreSQL."""
        if self.pid is None:
            return Usage(), Usage()
        database = processes.postgres_under(self.data) if self.data else []
        theirs = {each.pid for each in database}
        own = [each for each in processes.tree(self.pid) if each.pid not in theirs]
        return processes.usage(own), processes.usage(database)


@contextmanager
def sides(litellm: Path | None, folder: Path, environment: Mapping[str, str]) -> Iterator[list[Side]]:
    """All of them, with one stub. ServerError if one does not come up."""
    with ExitStack() as stack:
        port = free_port()
        log = folder / "stub.log"
        stub = stack.enter_context(child("loadgen.gateway.stub", (str(port),), environment, log))
        _await_port(stub, port, log)
        provider = f"http://127.0.0.1:{port}/v1"
        found = [Side(DIRECT, Target("127.0.0.1", port))]
        authority = Authority.create(folder / "pki", _DOMAIN)
        for number, (name, (store, budgets)) in enumerate(VARIANTS.items()):
            own = folder / f"ours-{number}"
            own.mkdir(mode=0o711)
            path = stack.enter_context(kubeconfig(objects(provider, budgets=budgets), own / "kubeconfig"))
            found.append(stack.enter_context(_ours(name, store, path, authority, own, environment)))
        if litellm is not None:
            found.append(stack.enter_context(_litellm(litellm, provider, folder, environment)))
        yield found


@contextmanager
def _ours(
    name: str, store: str, config: Path, authority: Authority, folder: Path, environment: Mapping[str, str]
) -> Iterator[Side]:
    domain = authority.domain
    serves = authority.issue(f"spiffe://{domain}/cp/modelgateway", folder / "server", dns_names=["localhost"])
    caller = authority.issue(
        f"spiffe://{domain}/ns/{NAMESPACE}/agent/{AGENT_NAME}/pod/{AGENT_NAME}-0/0", folder / "client"
    )
    edge, metrics = free_port(), free_port()
    told = {
        "MODELGATEWAY_STORE": store,
        "MODELGATEWAY_DATA_DIR": str(folder / "data"),
        "MODELGATEWAY_KUBECONFIG": str(config),
        "MODELGATEWAY_PORT": str(free_port()),
        "MODELGATEWAY_EDGE_PORT": str(edge),
        "MODELGATEWAY_METRICS_PORT": str(metrics),
        "AGENTCTL_TLS_DIR": str(serves.folder),
    }
    log = folder / "gateway.log"
    with child("services.modelgateway", (), {**environment, **told}, log) as process:
        await_ready(process, metrics, log)
        data = folder / "data" if store == "embedded" else None
        yield Side(name, Target("localhost", edge, _context(caller)), process.pid, data)


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=identity.root)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


@contextmanager
def _litellm(program: Path, provider: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Side]:
    """One worker, no database, no budgets, quiet, and the one key without which it does not start."""
    port, log, config = free_port(), folder / "litellm.log", folder / "litellm.json"
    price = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}  # it looks for one that is missing
    parameters = {"model": f"openai/{MODEL}", "api_base": provider, "api_key": "none", **price}
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
    key = f"sk-{secrets.token_hex(16)}"
    told = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MASTER_KEY": key,
    }
    where = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program), *where, "--num_workers", "1", "--telemetry", "False"],
            env={**environment, **told},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await_port(process, port, log)
        yield Side(LITELLM, Target("127.0.0.1", port, headers=(f"authorization: Bearer {key}",)), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise ServerError(f"it does not listen; {end_of(log)}")
