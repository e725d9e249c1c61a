"""Agent: one agent and what it does."""

from __future__ import annotations

from typing import Literal

import msgspec

from .pod import PodTemplate

Mode = Literal["once", "loop", "reactive", "schedule", "workflow"]


class ModelRef(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Which model the agent asks."""

    pool: str
    """A ModelPool of the same namespace."""
    id: str = ""
    """The model, one of the pool's. Empty: the pool's default."""


class Loop(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Runs again and again."""

    interval: str
    """From the end of a run to the start of the next: 30s, 5m, 1h30m."""
    deadline: str = ""
    """The longest a run may take."""


class Schedule(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Runs at times of the clock, never two runs at once."""

    cron: str
    """Five fields, or @hourly, @daily, @weekly, @monthly, @yearly."""
    time_zone: str = "Etc/UTC"
    """An IANA name."""
    starting_deadline: str = ""
    """How late a run may still start."""
    suspend: bool = False
    """Starts no run while true."""


class KeyRef(msgspec.Struct, rename="camel", kw_only=True):
    """One key of a ConfigMap of the same namespace."""

    name: str
    key: str


class Workflow(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The workflow document, one of the two."""

    inline: str = ""
    config_map_key_ref: KeyRef | None = None


class Limits(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Where a run is stopped. Absent: no limit of ours."""

    max_tokens: int | None = None
    max_steps: int | None = None
    max_depth: int | None = None


class Runs(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How the runs of once, workflow and schedule are kept."""

    retries: int = 0
    """How often a run that failed retriably (exit codes 1, 4, 6) is started again."""
    deadline: str = ""
    """The longest a run may take, retries included."""
    keep_for: str = ""
    """How long an ended run's Job and pod stay. Empty: until the next change."""
    trigger: str = ""
    """Any text; a changed one runs a `once` or `workflow` agent again."""


class AgentSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What one agent does and with what."""

    mode: Mode
    """When it runs: once, in a loop, when a subscribed resource changes, by the clock, or as a workflow."""
    image: str = ""
    """Container image. Empty: the reference agent."""
    instruction: str = ""
    """What to do, in words."""
    model: ModelRef | None = None
    mcp_servers: list[str] = []
    """MCPServerSets of the same namespace whose tools it may use."""
    subscribe: list[str] = []
    """URIs of MCP resources whose changes wake a reactive agent."""
    loop: Loop | None = None
    schedule: Schedule | None = None
    workflow: Workflow | None = None
    limits: Limits | None = None
    runs: Runs | None = None
    pod_template: PodTemplate | None = None
