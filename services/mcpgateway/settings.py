"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import MCP_GATEWAY


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are MCPGATEWAY_<FIELD>, or AGENTCTL_… where every component has the same."""

    kubeconfig: Path | None = None
    """Which cluster. None: the one that this pod is in."""
    bearer_file: Path | None = None
    """File with the token of a front proxy that says in headers for which agent it speaks; without it every
    caller needs a certificate."""
    server_ca_file: Path | None = None
    """PEM file of authorities of servers, beside those of the system."""
    allow_private: bool = False
    """Whether servers may be at private addresses, as those in the cluster are."""
    allow_loopback: bool = False
    """Whether servers may be on our own host: for the local home only."""
    connect_timeout: timedelta = timedelta(seconds=5)
    """Until a connection to a server stands."""
    idle_timeout: timedelta = timedelta(seconds=60)
    """For a server's first byte, and between two pieces of its answer."""
    call_timeout: timedelta = timedelta(minutes=10)
    """For a whole call."""
    at_once: int = 64
    """Requests to one server at once; of one caller at most half of them."""
    max_result: int = 4 * 1024 * 1024
    """Bytes of an answer of a server."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = MCP_GATEWAY.port
    """gRPC port; 0: any."""
    edge_port: int = 8444
    """HTTPS port of MCP; 0: any."""
    metrics_port: int = 9090
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    drain: timedelta = timedelta(seconds=10)
    """How long calls in flight may take after SIGTERM."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: str = field(default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"})
    """DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_once < 2 or self.max_result < 1024:
            raise ValueError("MCPGATEWAY_AT_ONCE must be at least 2, MCPGATEWAY_MAX_RESULT at least 1024")
        if not timedelta(0) < self.call_timeout <= timedelta(minutes=10):
            raise ValueError("MCPGATEWAY_CALL_TIMEOUT must be at most 10m")
