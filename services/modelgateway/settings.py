"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.enrol import Credentials
from libs.mesh import MODEL_GATEWAY


@dataclass(frozen=True)
class Settings(Credentials):
    """Variables are MODELGATEWAY_<FIELD>, or AGENTCTL_… where every component has the same."""

    kubeconfig: Path | None = None
    """Which cluster. None: the one that this pod is in."""
    store: Literal["memory", "postgres", "embedded"] = "postgres"
    """Of usage. memory: one replica, budgets begin anew at each start; postgres: database_file says where;
    embedded: a PostgreSQL that comes along, in data_dir."""
    database_file: Path | None = None
    """File with the connection string of a PostgreSQL 15 or later."""
    data_dir: Path | None = None
    """Folder of the embedded PostgreSQL."""
    bearer_file: Path | None = None
    """File with the token of a front proxy that says in headers for which agent it speaks; without it every
    caller needs a certificate."""
    provider_ca_file: Path | None = None
    """PEM file of authorities of providers, beside those of the system."""
    stand_in_url: str = ""
    """Base URL for pools that name no endpoint; empty: such pools cannot be used."""
    connect_timeout: timedelta = timedelta(seconds=10)
    """Until a connection to an endpoint stands."""
    first_byte_timeout: timedelta = timedelta(minutes=2)
    """Until an endpoint's first byte, connecting included."""
    idle_timeout: timedelta = timedelta(minutes=1)
    """Between two pieces of an answer."""
    call_timeout: timedelta = timedelta(minutes=10)
    """For a whole call. A reservation of a call that died expires 60 s later."""
    max_answer: int = 32 * 1024 * 1024
    """Bytes of an answer."""
    assumed_output: int = 4096
    """Tokens to reserve for an answer whose request sets no limit."""
    retention: timedelta = timedelta(days=7)
    """For how long calls are listed."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = MODEL_GATEWAY.port
    """gRPC port; 0: any."""
    edge_port: int = 8443
    """HTTPS port of the OpenAI API; 0: any."""
    metrics_port: int = 9090
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    drain: timedelta = timedelta(seconds=30)
    """How long calls in flight may take after SIGTERM."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: str = field(default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"})
    """DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store == "postgres" and self.database_file is None:
            raise ValueError("MODELGATEWAY_DATABASE_FILE is missing: MODELGATEWAY_STORE=postgres needs it")
        if self.store == "embedded" and self.data_dir is None:
            raise ValueError("MODELGATEWAY_DATA_DIR is missing: MODELGATEWAY_STORE=embedded needs it")
        if self.max_answer < 1 or self.assumed_output < 1:
            raise ValueError("MODELGATEWAY_MAX_ANSWER and MODELGATEWAY_ASSUMED_OUTPUT must be at least 1")
