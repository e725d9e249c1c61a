"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import APISERVER


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are APISERVER_<FIELD>, or AGENTCTL_… where every component has the same."""

    kubeconfig: Path | None = None
    """Which cluster. None: the one that this pod is in."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = APISERVER.port
    """gRPC port; 0: any."""
    edge_port: int | None = 6443
    """HTTPS port of the aggregated API, which kubectl comes through; 0: any; empty: it is not served."""
    metrics_port: int = 9090
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    drain: timedelta = timedelta(seconds=10)
    """How long calls in flight may take after SIGTERM."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: str = field(default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"})
    """DEBUG, INFO, WARNING or ERROR."""
