"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import SCALER


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are SCALER_<FIELD>, or AGENTCTL_… where every component has the same."""

    coordination_address: str = field(metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    """host:port of coordination."""
    min_interval: timedelta = timedelta(milliseconds=50)
    """Least time between two messages of coordination. The first change after a quiet time comes at once; a
    short interval costs coordination a look at all queues each."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = SCALER.port
    """gRPC port; 0: any."""
    metrics_port: int = 9090
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    drain: timedelta = timedelta(seconds=10)
    """How long calls in flight may take after SIGTERM."""
    front: Literal["h2corn", "grpcio"] = field(default="grpcio", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs. KEDA has one connection for all its streams; h2corn pings nobody on it, and ends
    it when a hundred of them are cancelled at once."""
    log_level: str = field(default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"})
    """DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not timedelta(milliseconds=1) <= self.min_interval <= timedelta(seconds=2):
            raise ValueError("SCALER_MIN_INTERVAL must be 1ms to 2s")
