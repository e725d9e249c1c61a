"""What the agent reads from its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Literal

from libs.contract.environment import shard_rules
from libs.enrol import Credentials

from .addresses import is_address, safe, servers_of, uris_of
from .order import Bounds
from .tools.tool import Server

MAX_INSTRUCTION = 65536
Mode = Literal["once", "loop", "reactive", "workflow", "claim"]

_QUEUE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9](?:[a-z0-9.-]{0,198}[a-z0-9])?")
_ADDRESS = re.compile(r"(?:[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MODES: dict[str, tuple[Mode, ...]] = {
    "queue": ("claim",),
    "lease": ("claim",),
    "shard_index": ("claim",),
    "shard_count": ("claim",),
    "shard_epoch": ("claim",),
    "loop_interval": ("loop",),
    "subscribe": ("reactive",),
    "workflow_file": ("workflow",),
    "state_dir": ("workflow",),
    "run_id": ("once", "workflow"),
    "report_file": ("once", "workflow"),
}
"""Settings that mean something in these modes only, and are refused in others."""
_NEEDED: dict[Mode, str] = {
    "claim": "queue",
    "loop": "loop_interval",
    "reactive": "subscribe",
    "workflow": "workflow_file",
}


@dataclass(frozen=True)
class Settings(Credentials):
    """AGENT_*, the mesh's AGENTCTL_*, and OPENAI_* as the stock OpenAI clients name them."""

    mode: Literal["once", "loop", "reactive", "workflow", "claim", ""] = ""
    """When it runs. Empty: claim if AGENT_QUEUE is set, and otherwise an error."""

    queue: str = ""
    """claim: the queue to claim from, namespace/name."""

    shard_index: int | None = None
    """claim: the shard of the queue that is ours, from 0. All of AGENT_SHARD_, or none."""

    shard_count: int | None = None
    """claim: shards of the queue, 1 to 1024."""

    shard_epoch: int | None = None
    """claim: which division of the queue that is; it grows with each."""

    loop_interval: timedelta | None = None
    """loop: from the end of a run to the start of the next."""

    subscribe: str = ""
    """reactive: URIs of the resources whose changes are reacted to, a JSON list."""

    workflow_file: Path | None = None
    """workflow: the document with its steps, YAML or JSON."""

    model: str = ""
    """The model to ask for, as its provider calls it. Only a workflow of tools does without."""

    base_url: str = field(default="", metadata={"env": "OPENAI_BASE_URL"})
    """Where the OpenAI-compatible API is, e.g. https://api.openai.com/v1. Plain http only on loopback."""

    instruction: str = ""
    """What to do: with each item, change, or message. This or AGENT_INSTRUCTION_FILE; a workflow may do
    without, and puts it before that of each step."""

    instruction_file: Path | None = None
    """A file that says it, UTF-8, at most 65536 characters."""

    mcp_servers: str = ""
    """Servers of tools and resources: a JSON list of {"name", "endpoint", "tags", "identity"}. Those whose
    identity is true are shown our certificate."""

    slots: int = 4
    """Runs at the same time, whatever began them; also steps of a workflow. 1 to 256."""

    max_steps: int = 50
    """Turns with the model that a run may take."""

    max_tokens: int | None = None
    """Tokens, of prompts and answers together, that a run may use."""

    max_depth: int = 4
    """Agents that a message may have come through."""

    deadline: timedelta | None = None
    """The longest that a run may take; while it is held, that stands still."""

    tool_timeout: timedelta = timedelta(seconds=60)
    """The longest that one call of a tool may take."""

    lease: timedelta = timedelta(seconds=30)
    """claim: how long an item is ours without a sign of life; renewed at a third of it."""

    run_id: str = ""
    """once, workflow: the run's id, the same over a Job's retries. Empty: a new one."""

    report_file: Path | None = None
    """once, workflow: where the report on the run goes, JSON of at most 4096 bytes."""

    state_dir: Path | None = None
    """workflow: a folder where finished steps are kept, so that a process that starts anew skips them."""

    drain_timeout: timedelta = timedelta(seconds=25)
    """After SIGTERM, time to finish what is begun; the rest is given back. Less than the pod's grace."""

    start_timeout: timedelta = timedelta(seconds=30)
    """How long to wait, at the start, for the model and for coordination before giving up."""

    model_ca_file: Path | None = None
    """Authorities, PEM, that are believed at https endpoints beside the system's; may change in place."""

    model_identity: bool = False
    """Whether OPENAI_BASE_URL, which is https then, is shown our certificate."""

    model_timeout: timedelta = timedelta(seconds=120)
    """The longest one answer of the model may take."""

    api_key: str = field(default="", repr=False, metadata={"env": "OPENAI_API_KEY", "secret": True})
    """Bearer token for the model; better as a file. Empty: none is sent."""

    api_key_file: Path | None = field(default=None, metadata={"env": "OPENAI_API_KEY_FILE"})
    """A file with that token; read anew for every call, so it may be rotated."""

    coordination: str = field(default="127.0.0.1:7410", metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    """host:port of the coordination service."""

    host: str = "127.0.0.1"
    """Address of both ports."""

    port: int = 7414
    """gRPC port of AgentService; 0 picks a free one."""

    metrics_port: int = 9090
    """Plain HTTP port of /metrics, /livez and /readyz; 0 picks a free one."""

    pod_name: str = field(default="", metadata={"env": "AGENTCTL_POD_NAME"})
    """The pod's name, for the manifest; as the next ones. A certificate knows better."""

    pod_uid: str = field(default="", metadata={"env": "AGENTCTL_POD_UID"})
    """The pod's uid."""

    pod_namespace: str = field(default="", metadata={"env": "AGENTCTL_POD_NAMESPACE"})
    """Its namespace."""

    node_name: str = field(default="", metadata={"env": "AGENTCTL_NODE_NAME"})
    """Its node."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = field(
        default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"}
    )
    """Least level that is logged."""

    @property
    def when(self) -> Mode:
        """The mode."""
        return self.mode or "claim"

    @property
    def servers(self) -> tuple[Server, ...]:
        """Servers of tools and resources."""
        return servers_of(self.mcp_servers)

    @property
    def uris(self) -> tuple[str, ...]:
        """What is subscribed to."""
        return uris_of(self.subscribe)

    @property
    def bounds(self) -> Bounds:
        """The limits of a run. What a queue retries, the engine does not."""
        tries = {"tries": 1} if self.when == "claim" else {}
        return Bounds(
            self.max_steps, self.max_tokens, self.deadline, self.max_depth, self.tool_timeout, **tries
        )

    @property
    def shard(self) -> tuple[int, int, int] | None:
        """Index, count and epoch; None: the queue has no shards."""
        if self.shard_index is None or self.shard_count is None or self.shard_epoch is None:
            return None
        return self.shard_index, self.shard_count, self.shard_epoch

    def prompt(self) -> str:
        """The instruction, wherever it is. ValueError when there is none to be had."""
        if self.instruction_file is None:
            return self.instruction
        try:
            text = self.instruction_file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ValueError(f"AGENT_INSTRUCTION_FILE: {error}") from error
        if not text.strip() or len(text) > MAX_INSTRUCTION:
            raise ValueError(
                f"AGENT_INSTRUCTION_FILE: {len(text)} characters; 1 to {MAX_INSTRUCTION} allowed"
            )
        return text

    def key(self) -> str:
        """The bearer token of the model as it is now, perhaps empty. OSError when its file cannot be read."""
        return self.api_key_file.read_text(encoding="utf-8").strip() if self.api_key_file else self.api_key

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [problem for allowed, problem in (*self._mode_rules(), *self._rules()) if not allowed]
        for read in (servers_of, self.mcp_servers), (uris_of, self.subscribe):
            try:
                read[0](read[1])
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def _mode_rules(self) -> list[tuple[bool, str]]:
        mode, defaults = self.when, {each.name: each.default for each in fields(self)}
        rules = [
            (
                mode in modes or getattr(self, name) == defaults[name],
                f"AGENT_{name.upper()}: goes with mode {' or '.join(modes)}, not {mode}",
            )
            for name, modes in MODES.items()
        ]
        if needed := _NEEDED.get(mode):
            why = f"is needed in mode {mode}" if self.mode else "set it, or AGENT_MODE"
            rules.append((bool(getattr(self, needed)), f"AGENT_{needed.upper()}: {why}"))
        needs_model = mode != "workflow"
        told = bool(self.instruction) + bool(self.instruction_file)
        return [
            *rules,
            (
                told == 1 or (told == 0 and not needs_model),
                "AGENT_INSTRUCTION, AGENT_INSTRUCTION_FILE: set one of the two",
            ),
            (bool(self.model) or not (needs_model or self.base_url), "AGENT_MODEL: is empty"),
            (
                safe(self.base_url) or not (self.base_url or self.model or needs_model),
                f"OPENAI_BASE_URL: {self.base_url!r} is not https, nor http on loopback",
            ),
            (
                not (self.model_identity and self.base_url) or self.base_url.startswith("https:"),
                f"AGENT_MODEL_IDENTITY: {self.base_url!r} is not https",
            ),
            (mode != "reactive" or bool(self.mcp_servers), "AGENT_MCP_SERVERS: is needed in mode reactive"),
        ]

    def _rules(self) -> list[tuple[bool, str]]:
        address = _ADDRESS.fullmatch(self.coordination)
        second = timedelta(seconds=1)
        return [
            (
                not self.queue or bool(_QUEUE.fullmatch(self.queue)),
                f"AGENT_QUEUE: {self.queue!r} is not namespace/name",
            ),
            (_utf8(self.instruction), "AGENT_INSTRUCTION: is not UTF-8"),
            (_utf8(self.model), "AGENT_MODEL: is not UTF-8"),
            (
                not (self.api_key and self.api_key_file),
                "OPENAI_API_KEY, OPENAI_API_KEY_FILE: set at most one",
            ),
            (
                address is not None and 0 < int(address["port"]) < 65536,
                f"AGENTCTL_COORDINATION_ADDRESS: {self.coordination!r} is not host:port",
            ),
            (
                not self.run_id or bool(_RUN_ID.fullmatch(self.run_id)),
                "AGENT_RUN_ID: 1 to 128 letters, digits, dots, dashes, underscores and colons",
            ),
            *shard_rules(self.shard_index, self.shard_count, self.shard_epoch),
            (1 <= self.slots <= 256, "AGENT_SLOTS: 1 to 256"),
            (1 <= self.max_steps <= 1_000_000, "AGENT_MAX_STEPS: 1 to 1000000"),
            (self.max_tokens is None or self.max_tokens > 0, "AGENT_MAX_TOKENS: at least 1"),
            (1 <= self.max_depth <= 100, "AGENT_MAX_DEPTH: 1 to 100"),
            (0 <= self.port < 65536, "AGENT_PORT: 0 to 65535"),
            (0 <= self.metrics_port < 65536, "AGENT_METRICS_PORT: 0 to 65535"),
            (not self.port or self.port != self.metrics_port, "AGENT_METRICS_PORT: is that of AGENT_PORT"),
            (is_address(self.host), f"AGENT_HOST: {self.host!r} is no IP address, nor localhost"),
            (self.lease >= second, "AGENT_LEASE: at least 1s"),
            (
                self.loop_interval is None or self.loop_interval > timedelta(0),
                "AGENT_LOOP_INTERVAL: more than 0s",
            ),
            (self.deadline is None or self.deadline > timedelta(0), "AGENT_DEADLINE: more than 0s"),
            (self.tool_timeout > timedelta(0), "AGENT_TOOL_TIMEOUT: more than 0s"),
            (self.model_timeout > timedelta(0), "AGENT_MODEL_TIMEOUT: more than 0s"),
        ]


def _utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
