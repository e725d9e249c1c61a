"""What the agent reads from its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from libs.enrol import Credentials

MAX_INSTRUCTION = 65536
_QUEUE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9](?:[a-z0-9.-]{0,198}[a-z0-9])?")
_ADDRESS = re.compile(r"(?:[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Settings(Credentials):
    """AGENT_*, the mesh's AGENTCTL_*, and OPENAI_* as the stock OpenAI clients name them."""

    queue: str
    """The queue to claim from, namespace/name."""

    model: str
    """The model to ask for, as its provider calls it."""

    base_url: str = field(metadata={"env": "OPENAI_BASE_URL"})
    """Where the OpenAI-compatible API is, e.g. https://api.openai.com/v1. Plain http only on loopback."""

    instruction: str = ""
    """What to do with each item. This or AGENT_INSTRUCTION_FILE."""

    instruction_file: Path | None = None
    """A file that says it, UTF-8, at most 65536 characters."""

    slots: int = 4
    """Items worked on at the same time, 1 to 256."""

    lease: timedelta = timedelta(seconds=30)
    """How long an item is ours without a sign of life; renewed at a third of it."""

    drain_timeout: timedelta = timedelta(seconds=25)
    """After SIGTERM, time to finish what is begun; the rest is given back. Less than the pod's grace."""

    start_timeout: timedelta = timedelta(seconds=30)
    """How long to wait, at the start, for the model and for coordination before giving up."""

    model_ca_file: Path | None = None
    """Authorities, PEM, that are believed at the model's https endpoint beside the system's; may change in
    place."""

    model_timeout: timedelta = timedelta(seconds=120)
    """The longest one answer of the model may take."""

    api_key: str = field(default="", repr=False, metadata={"env": "OPENAI_API_KEY", "secret": True})
    """Bearer token for the model; better as a file. Empty: none is sent."""

    api_key_file: Path | None = field(default=None, metadata={"env": "OPENAI_API_KEY_FILE"})
    """A file with that token; read anew for every call, so it may be rotated."""

    coordination: str = field(default="127.0.0.1:7410", metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    """host:port of the coordination service."""

    host: str = "127.0.0.1"
    """Address of the plain port."""

    metrics_port: int = 9090
    """Plain HTTP port of /metrics, /livez and /readyz; 0 picks a free one."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = field(
        default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"}
    )
    """Least level that is logged."""

    def prompt(self) -> str:
        """The instruction, wherever it is. ValueError when there is none to be had."""
        if self.instruction_file is None:
            return self.instruction
        try:
            text = self.instruction_file.read_text(encoding="utf-8")
        except OSError as error:
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
        problems = [problem for allowed, problem in self._rules() if not allowed]
        if problems:
            raise ValueError("\n".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        address = _ADDRESS.fullmatch(self.coordination)
        return [
            (bool(_QUEUE.fullmatch(self.queue)), f"AGENT_QUEUE: {self.queue!r} is not namespace/name"),
            (bool(self.model), "AGENT_MODEL: is empty"),
            (
                bool(self.instruction) != bool(self.instruction_file),
                "AGENT_INSTRUCTION, AGENT_INSTRUCTION_FILE: set one of the two",
            ),
            (_utf8(self.instruction), "AGENT_INSTRUCTION: is not UTF-8"),
            (_utf8(self.model), "AGENT_MODEL: is not UTF-8"),
            (
                not (self.api_key and self.api_key_file),
                "OPENAI_API_KEY, OPENAI_API_KEY_FILE: set at most one",
            ),
            (_safe(self.base_url), f"OPENAI_BASE_URL: {self.base_url!r} is not https, nor http on loopback"),
            (
                address is not None and 0 < int(address["port"]) < 65536,
                f"AGENTCTL_COORDINATION_ADDRESS: {self.coordination!r} is not host:port",
            ),
            (1 <= self.slots <= 256, "AGENT_SLOTS: 1 to 256"),
            (0 <= self.metrics_port < 65536, "AGENT_METRICS_PORT: 0 to 65535"),
            (timedelta(seconds=1) <= self.lease, "AGENT_LEASE: at least 1s"),
            (timedelta(0) < self.model_timeout, "AGENT_MODEL_TIMEOUT: more than 0s"),
        ]


def _utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _safe(url: str) -> bool:
    """Prompts and keys do not travel in the clear."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and _loopback(parts.hostname or ""))
        )
    except ValueError:
        return False


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
