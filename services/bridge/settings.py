"""What the bridge reads from its environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from libs.contract.environment import shard_rules
from libs.enrol import Credentials
from libs.mesh import AGENT

MAX_SLOTS = 4
"""Runs that agentd serves at the same time; it refuses a fifth."""


@dataclass(frozen=True)
class Upstream:
    """A server that calls of the agent go on to."""

    url: str
    is_shown_ours: bool = False
    """The pod's certificate."""

    @property
    def can_be(self) -> bool:
        """A certificate is shown by https only."""
        return not self.is_shown_ours or self.url.startswith("https:")


@dataclass(frozen=True)
class Settings(Credentials):
    """BRIDGE_*, and of AGENT_*, AGENTCTL_* and OPENAI_* what an agent is told that a bridge has to know."""

    mode: str = field(default="", metadata={"env": "AGENT_MODE"})
    """What the agent does by itself; empty: it claims if it has a queue."""
    queue: str = field(default="", metadata={"env": "AGENT_QUEUE"})
    """The queue to claim from on the agent's behalf, namespace/name; empty: none. A coordinator's is for
    others to claim from."""
    shard_index: int | None = field(default=None, metadata={"env": "AGENT_SHARD_INDEX"})
    """The shard of the queue that is the agent's, from 0. All of AGENT_SHARD_, or none."""
    shard_count: int | None = field(default=None, metadata={"env": "AGENT_SHARD_COUNT"})
    """Shards of the queue, 1 to 1024."""
    shard_epoch: int | None = field(default=None, metadata={"env": "AGENT_SHARD_EPOCH"})
    """Which division of the queue that is; it grows with each."""
    run_id: str = field(default="", metadata={"env": "AGENT_RUN_ID"})
    """Of the run of mode once."""
    report_file: Path | None = field(default=None, metadata={"env": "AGENT_REPORT_FILE"})
    """Where the report on that run is left, JSON of at most 4096 bytes."""
    instruction: str = field(default="", metadata={"env": "AGENT_INSTRUCTION"})
    """What to do with each item and message."""
    instruction_file: Path | None = field(default=None, metadata={"env": "AGENT_INSTRUCTION_FILE"})
    """A file that says it, UTF-8."""
    slots: int = field(default=MAX_SLOTS, metadata={"env": "AGENT_SLOTS"})
    """Items worked on at the same time; more than 4 are taken for 4."""
    lease: timedelta = field(default=timedelta(seconds=30), metadata={"env": "AGENT_LEASE"})
    """How long an item is ours without a sign of life; renewed at a third of it."""
    drain_timeout: timedelta = field(default=timedelta(seconds=25), metadata={"env": "AGENT_DRAIN_TIMEOUT"})
    """The longest drain. Less than the pod's grace."""
    max_depth: int = field(default=4, metadata={"env": "AGENT_MAX_DEPTH"})
    """A message that came through more agents is refused."""
    max_steps: int = field(default=0, metadata={"env": "AGENT_MAX_STEPS"})
    """The turns that the agent may take; 0: not known. It is agentd that looks."""
    max_tokens: int = field(default=0, metadata={"env": "AGENT_MAX_TOKENS"})
    """What a run may take, both ways together. agentd looks between turns only; 0: what it does is enough."""
    subscribe: str = field(default="", metadata={"env": "AGENT_SUBSCRIBE"})
    """URIs that wake the agent, a JSON list."""
    servers: str = field(default="", metadata={"env": "AGENT_MCP_SERVERS"})
    """Tool servers, JSON: [{"name", "endpoint", "tags", "identity"}]. Those whose identity is true are shown
    the pod's certificate."""
    model: str = field(default="", metadata={"env": "AGENT_MODEL"})
    """The model that the agent asks for."""
    base_url: str = field(default="", metadata={"env": "OPENAI_BASE_URL"})
    """Where calls of the model go; empty: nowhere. Plain http only on loopback."""
    model_identity: bool = field(default=False, metadata={"env": "AGENT_MODEL_IDENTITY"})
    """Whether OPENAI_BASE_URL, which is https then, is shown the pod's certificate."""
    ca_file: Path | None = field(default=None, metadata={"env": "AGENT_MODEL_CA_FILE"})
    """Authorities, PEM, that are believed of models and tool servers beside the system's."""
    answer_within: timedelta = field(default=timedelta(seconds=120), metadata={"env": "AGENT_MODEL_TIMEOUT"})
    """The longest silence of a model or tool server in an answer."""
    coordination: str = field(default="127.0.0.1:7410", metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    """host:port of the coordination service."""
    host: str = field(default="127.0.0.1", metadata={"env": "AGENT_HOST"})
    """Address of AgentService and the plain port. Where it is one of loopback, the agent is met there too."""
    port: int = field(default=AGENT.port, metadata={"env": "AGENT_PORT"})
    """gRPC port of AgentService; 0: any."""
    metrics_port: int = field(default=9090, metadata={"env": "AGENT_METRICS_PORT"})
    """Plain port of /metrics, /livez and /readyz; 0: any."""
    agent_port: int = 8443
    """Port of the agent's listener."""
    agent_metrics_port: int = 9091
    """Port of the agent's own metrics; 0: it has none."""
    forward_port: int = 7431
    """Port at which the agent finds its model and its tool servers; 0: any."""
    shared_dir: Path = Path("/run/agentctl/bridge")
    """Folder that the agent reads its certificate from: tls.crt, tls.key and ca.crt, written here."""
    private_dir: Path | None = None
    """Folder of the certificate that the agent knows us by; None: `loopback` in AGENTCTL_TLS_DIR."""
    certificate_lifetime: timedelta = timedelta(hours=24)
    """Of the certificates between agent and bridge; renewed at two thirds."""
    front: Literal["h2corn", "grpcio"] = field(default="h2corn", metadata={"env": "AGENTCTL_FRONT"})
    """What carries the RPCs."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = field(
        default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"}
    )
    """Least level that is logged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [problem for is_fine, problem in self._rules() if not is_fine]
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def loopback(self) -> str:
        """Where the agent and the bridge meet: pods of one machine may have a loopback address each."""
        return self.host if _is_loopback(self.host) else "127.0.0.1"

    @property
    def private(self) -> Path:
        """Where our own pair of the loopback's authority is."""
        return self.private_dir or self.tls_dir / "loopback"

    @property
    def claimed_queue(self) -> str:
        """The queue that is claimed from; empty: none."""
        return self.queue if self.mode in ("", "claim") else ""

    @property
    def shard(self) -> tuple[int, int, int] | None:
        """Index, count and epoch; None: the queue has no shards."""
        if self.shard_index is None or self.shard_count is None or self.shard_epoch is None:
            return None
        return self.shard_index, self.shard_count, self.shard_epoch

    @property
    def taken_slots(self) -> int:
        """Slots as agentd has them."""
        return min(self.slots, MAX_SLOTS)

    @cached_property
    def endpoints(self) -> Mapping[str, Upstream]:
        """Tool servers by name."""
        return {
            each["name"]: Upstream(each["endpoint"], _is_true(each.get("identity", False)))
            for each in json.loads(self.servers or "[]")
        }

    @cached_property
    def subscriptions(self) -> tuple[str, ...]:
        """URIs that wake the agent."""
        return tuple(json.loads(self.subscribe or "[]"))

    def standing(self) -> str:
        """The instruction, wherever it is; may be empty. ValueError if its file cannot be read."""
        if self.instruction_file is None:
            return self.instruction
        try:
            return self.instruction_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"AGENT_INSTRUCTION_FILE: {error}") from error

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (
                _reads(lambda: self.endpoints),
                'AGENT_MCP_SERVERS: not a JSON list of {"name", "endpoint"}, with "identity" true or false',
            ),
            (_reads(lambda: self.subscriptions), "AGENT_SUBSCRIBE: not a JSON list of URIs"),
            (
                not self.base_url or _is_safe(self.base_url),
                "OPENAI_BASE_URL: not https, nor http on loopback",
            ),
            (
                not self.base_url or Upstream(self.base_url, self.model_identity).can_be,
                "AGENT_MODEL_IDENTITY: OPENAI_BASE_URL is not https",
            ),
            *shard_rules(self.shard_index, self.shard_count, self.shard_epoch),
            (self.slots >= 1, "AGENT_SLOTS: at least 1"),
            (self.lease >= timedelta(seconds=1), "AGENT_LEASE: at least 1s"),
            (
                not (self.instruction and self.instruction_file),
                "AGENT_INSTRUCTION, AGENT_INSTRUCTION_FILE: set at most one",
            ),
            (
                timedelta(minutes=1) <= self.certificate_lifetime <= timedelta(days=365),
                "BRIDGE_CERTIFICATE_LIFETIME: 1m to 365d",
            ),
            *(
                (
                    _is_safe(each.url) and each.can_be,
                    f"AGENT_MCP_SERVERS: {name}: not https, nor http on loopback without identity",
                )
                for name, each in (self.endpoints if _reads(lambda: self.endpoints) else {}).items()
            ),
        ]


def _reads(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _is_true(said: object) -> bool:
    if not isinstance(said, bool):
        raise TypeError
    return said


def _is_safe(url: str) -> bool:
    """Prompts do not travel in the clear."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
