"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

COMPONENTS = ("coordination", "provider", "apiserver", "admission", "scaler", "modelgateway", "mcpgateway")
"""What a pod's plane can run; the operator, which holds the authority, is never one of them."""


@dataclass(frozen=True)
class Settings:
    """Variables are PLANE_<FIELD>, or AGENTCTL_… where every component has the same. Each component reads
    its own variables too, except those that the plane decides: addresses, ports and certificates."""

    home: Literal["local", "pod"] = "local"
    """local: a whole plane on this machine, objects and agents included; pod: components of a cluster."""
    components: tuple[str, ...] = COMPONENTS
    """In a pod: which to run."""
    state_dir: Path | None = field(default=None, metadata={"env": "AGENTCTL_STATE_DIR"})
    """At home: the folder of objects, keys, data and logs."""
    store: Literal["embedded", "memory", "postgres"] = "embedded"
    """At home: where coordination keeps work."""
    database_file: Path | None = None
    """At home, with store=postgres: a file with its connection string."""
    gateways: bool = False
    """At home: whether agents reach models and tools through the gateways, which then run too."""
    port: int = 0
    """At home: gRPC port of coordination; 0: any."""
    host: str = "127.0.0.1"
    """In a pod: the address to listen on."""
    metrics_port: int = 0
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    manifests: tuple[str, ...] = ()
    """At home: files to apply at the start."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = field(
        default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"}
    )
    """DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        if unknown := [each for each in self.components if each not in COMPONENTS]:
            raise ValueError(f"PLANE_COMPONENTS: {', '.join(unknown)}: there are {', '.join(COMPONENTS)}")
        if self.home == "local" and self.state_dir is None:
            raise ValueError("AGENTCTL_STATE_DIR is missing: a plane at home keeps everything there")
        if (self.store == "postgres") != (self.database_file is not None):
            raise ValueError("PLANE_STORE=postgres and PLANE_DATABASE_FILE go together")
