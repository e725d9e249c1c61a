"""What the environment may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.mesh import IDENTITY, OPERATOR


@dataclass(frozen=True)
class Settings:
    """Variables are OPERATOR_<FIELD>, or AGENTCTL_… where every component has the same."""

    tls_dir: Path = field(metadata={"env": "AGENTCTL_TLS_DIR"})
    """Folder for our certificate, which the operator issues to itself, and for whom we trust."""
    kubeconfig: Path | None = None
    """Which cluster. None: the one that this pod is in."""
    namespace: str = "agentctl-system"
    """The system namespace: the Lease, the authority and the components live there, and no agent does."""
    only_namespace: str = ""
    """Act on objects of this namespace and of no other. Empty: of all."""
    replica: str = "operator"
    """Who we are in the Lease: the pod's name."""
    trust_domain: str = field(default="local.agentctl", metadata={"env": "AGENTCTL_TRUST_DOMAIN"})
    """The first part of every id. Chosen once: the authority in the cluster is of one domain."""
    agent_image: str = "agentctl"
    """Image of agents that name none."""
    coordination_address: str = field(default="", metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    """Where agents and we find coordination. Empty: no queue is set up, and pods get no address."""
    identity_address: str = field(default="", metadata={"env": "AGENTCTL_IDENTITY_ADDRESS"})
    """Where agents get their certificate."""
    scaler_address: str = field(default="", metadata={"env": "AGENTCTL_SCALER_ADDRESS"})
    """Where KEDA finds the scaler. Empty: no ScaledObjects are made."""
    keda_namespace: str = ""
    """Where KEDA runs: there we keep the Secret with its certificate for the scaler. Empty: nowhere."""
    stand_in_url: str = ""
    """The model endpoint of pools that name none: a stand-in, which is no model. Empty: there is none."""
    model_gateway_url: str = field(default="", metadata={"env": "AGENTCTL_MODEL_GATEWAY_URL"})
    """Where agents reach models, as https://modelgateway.agentctl-system.svc:8443/v1. Empty: at their pool's
    endpoint, and pools that need the gateway are refused."""
    mcp_gateway_url: str = field(default="", metadata={"env": "AGENTCTL_MCP_GATEWAY_URL"})
    """Where agents reach tools, as https://mcpgateway.agentctl-system.svc:8444. Empty: at the servers
    themselves, and sets that need the gateway are refused."""
    loopback: str = "127.0.0.1"
    """Where a bridge and its agent meet. Pods that share one loopback device need $(AGENT_HOST) here."""
    registers: bool = False
    """Whether the leader keeps the APIService of the management verbs, and whom the webhooks trust."""
    mint: str = ""
    """ACCOUNT:FOLDER: there we keep a token of that ServiceAccount of the system namespace, for a neighbour
    in our pod. Empty: none."""
    workers: int = 4
    """Objects that are reconciled at a time."""
    resync: timedelta = timedelta(minutes=10)
    """Each object is looked at about this often even if nothing changed."""
    lease: timedelta = timedelta(seconds=15)
    """After this long without a sign of life of the leader another replica leads. At least 3s."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = OPERATOR.port
    """gRPC port; 0: any."""
    identity_port: int = IDENTITY.port
    """Port of the listener that issues certificates; 0: any."""
    metrics_port: int = 9090
    """Plain port for /metrics, /livez and /readyz; 0: any."""
    drain: timedelta = timedelta(seconds=10)
    """How long calls in flight may take after SIGTERM."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: str = field(default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"})
    """DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError("OPERATOR_WORKERS must be at least 1")
        if self.lease < timedelta(seconds=3):
            raise ValueError("OPERATOR_LEASE must be at least 3s")
        for name, url in (("MODEL", self.model_gateway_url), ("MCP", self.mcp_gateway_url)):
            if url and not url.startswith("https://"):
                raise ValueError(f"AGENTCTL_{name}_GATEWAY_URL must be an https URL")
        if self.mint and not all(self.mint.partition(":")):
            raise ValueError("OPERATOR_MINT must be ACCOUNT:FOLDER")
