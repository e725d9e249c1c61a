"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import ADMISSION

from .context import Policy


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are ADMISSION_<FIELD>, or AGENTCTL_… where every component has the same."""

    allowed_images: tuple[str, ...] = ()
    """Which images agents may run, such as ghcr.io/acme/** or docker.io/library/python:3.*; empty: any."""
    namespace: str = "agentctl-system"
    """Where the control plane lives, and no agent may."""
    kubeconfig: Path | None = None
    """Of the cluster; empty: the one that we run in."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = ADMISSION.port
    """gRPC port; 0: any."""
    edge_port: int | None = 9443
    """HTTPS port of the webhooks; 0: any; empty: none."""
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
        Policy(self.allowed_images)
