"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import COORDINATION


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are COORDINATION_<FIELD>, or AGENTCTL_… where every component has the same."""

    store: Literal["memory", "postgres", "embedded"] = "embedded"
    """memory: one replica, nothing survives a restart; postgres: database_file says where; embedded: a
    PostgreSQL that comes along, in data_dir."""
    database_file: Path | None = None
    """File with the connection string of a PostgreSQL 15 or later."""
    data_dir: Path | None = None
    """Folder of the embedded PostgreSQL."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = COORDINATION.port
    """gRPC port; 0: any."""
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
        if self.store == "postgres" and self.database_file is None:
            raise ValueError("COORDINATION_DATABASE_FILE is missing: COORDINATION_STORE=postgres needs it")
        if self.store == "embedded" and self.data_dir is None:
            raise ValueError("COORDINATION_DATA_DIR is missing: COORDINATION_STORE=embedded needs it")
