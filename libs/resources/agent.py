"""Agent: one agent and what it does."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from .pod import PodTemplate
from .shape import Image, Key, Label, Name, Rule, lasting, one_of, ruled, text, unique

Mode = Literal["once", "loop", "reactive", "schedule", "workflow"]
Contract = Literal["agentctl", "agentd-1"]

Instruction = Annotated[str, Meta(min_length=1, max_length=65536, pattern=r"\S")]
ModelId = Annotated[str, text(256, r"^\S+$", "the id of a model, without spaces")]
_Uri = Annotated[str, text(2048, r"^[A-Za-z][-A-Za-z0-9+.]*:\S+$", "a URI with its scheme")]
ServerSets = Annotated[list[Label], unique(16)]


def _cron() -> str:
    """What Kubernetes takes as `CronJob.spec.schedule`, as far as a regular expression can say it."""
    months = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
    values = (
        "[0-5]?[0-9]",
        "[01]?[0-9]|2[0-3]",
        "0?[1-9]|[12][0-9]|3[01]",
        f"0?[1-9]|1[0-2]|{months}|{months.lower()}",
        "[0-6]|SUN|MON|TUE|WED|THU|FRI|SAT|sun|mon|tue|wed|thu|fri|sat",
    )
    terms = [rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?" for value in values]
    fields = " +".join(f"{term}(,{term})*" for term in terms)
    return f"^(@(hourly|daily|weekly|monthly|yearly)|{fields})$"


_Cron = Annotated[
    str,
    text(
        128,
        _cron(),
        "five fields (minute, hour, day of month, month, day of week), "
        "or @hourly, @daily, @weekly, @monthly, @yearly",
    ),
]
_ZONE = "the IANA name of a time zone, such as Europe/Vienna"


class ModelRef(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Which model the agent asks."""

    pool: Label
    """A ModelPool of the same namespace."""
    id: ModelId = ""
    """The model, one of the pool's. Absent: the pool's default."""


class Loop(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Runs again and again."""

    interval: Annotated[str, lasting("1s", "720h")]
    """From the end of a run to the start of the next: 30s, 5m, 1h30m."""


class Schedule(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Runs at times of the clock, never two runs at once."""

    cron: _Cron
    """Five fields, or @hourly, @daily, @weekly, @monthly, @yearly."""
    time_zone: Annotated[
        str,
        text(64, "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", _ZONE),
        ruled(Rule("!self.matches('^[Ll]ocal$')", f"has to be {_ZONE}")),
    ] = "Etc/UTC"
    """An IANA name."""
    starting_deadline: Annotated[str, lasting("10s", "720h")] = ""
    """How late a run may still start. Absent: however late."""
    suspend: bool = False
    """Starts no run while true."""


class KeyRef(msgspec.Struct, rename="camel", kw_only=True):
    """One key of a ConfigMap of the same namespace."""

    name: Name
    """The ConfigMap."""
    key: Key
    """The key in it."""


class Workflow(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The workflow document, here or in a ConfigMap."""

    rules: ClassVar = (one_of("inline", "configMapKeyRef"),)

    inline: Annotated[str, Meta(min_length=1, max_length=262144)] = ""
    """The document itself."""
    config_map_key_ref: KeyRef | None = None
    """The key of a ConfigMap that holds it."""


class Limits(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Where one run is stopped: with exit code 7."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Tokens, of prompts and answers together. Absent: no limit."""
    max_steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Turns with the model. Absent: 50."""
    max_depth: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Agents that call agents. Absent: 4."""
    deadline: Annotated[str, lasting("1s", "720h")] = ""
    """The longest one run may take. Absent: no limit."""


class Runs(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How the runs of once, workflow and schedule are kept."""

    retries: Annotated[int, Meta(ge=0, le=20)] = 0
    """How often a run that failed retriably (exit codes 1, 4, 6) is started again."""
    deadline: Annotated[str, lasting("1s", "720h")] = ""
    """The longest a run may take, retries included. Absent: no limit."""
    keep_for: Annotated[str, lasting("1s", "8760h")] = ""
    """How long an ended run's Job and pod stay. Absent: until the next change."""
    trigger: Annotated[str, Meta(min_length=1, max_length=253)] = ""
    """Any text; a changed one runs a `once` or `workflow` agent again."""


FOREIGN = (
    Rule("self.contract == 'agentctl' || has(self.image)", "is needed with contract agentd-1", ".image"),
    Rule(
        "self.contract == 'agentctl' || has(self.instruction)",
        "is needed with contract agentd-1",
        ".instruction",
    ),
    Rule("self.contract == 'agentctl' || has(self.model)", "is needed with contract agentd-1", ".model"),
)
"""What an agent of another contract cannot do without: it ends at once if one of these is absent."""


class AgentSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What one agent does and with what."""

    rules: ClassVar = (
        Rule(
            "has(self.__loop__) == (self.mode == 'loop')",
            "goes with mode loop: needed there, refused elsewhere",
            ".loop",
        ),
        Rule(
            "has(self.schedule) == (self.mode == 'schedule')",
            "goes with mode schedule: needed there, refused elsewhere",
            ".schedule",
        ),
        Rule(
            "has(self.workflow) == (self.mode == 'workflow')",
            "goes with mode workflow: needed there, refused elsewhere",
            ".workflow",
        ),
        Rule(
            "(has(self.subscribe) && self.subscribe.size() > 0) == (self.mode == 'reactive')",
            "goes with mode reactive: needed there, refused elsewhere",
            ".subscribe",
        ),
        Rule(
            "has(self.instruction) || self.mode == 'workflow'",
            "is needed in every mode but workflow",
            ".instruction",
        ),
        Rule(
            "has(self.model) || has(self.image) || self.mode == 'workflow'",
            "the reference agent needs a model; an image of your own may do without",
            ".model",
        ),
        Rule(
            "!has(self.runs) || self.mode in ['once', 'workflow', 'schedule']",
            "goes with the modes once, workflow and schedule",
            ".runs",
        ),
        Rule(
            "!has(self.runs) || !has(self.runs.trigger) || self.mode in ['once', 'workflow']",
            "goes with the modes once and workflow",
            ".runs.trigger",
        ),
        *FOREIGN,
    )

    mode: Mode
    """When it runs: once, in a loop, when a subscribed resource changes, by the clock, or as a workflow."""
    image: Image = ""
    """Container image. Absent: the reference agent."""
    contract: Contract = "agentctl"
    """Which contract the image speaks. Beside an agent that speaks agentd-1 stands a bridge."""
    instruction: Instruction = ""
    """What to do, in words."""
    model: ModelRef | None = None
    mcp_servers: ServerSets = []
    """MCPServerSets of the same namespace whose tools it may use."""
    subscribe: Annotated[list[_Uri], unique(64)] = []
    """URIs of MCP resources whose changes wake a reactive agent."""
    loop: Loop | None = None
    schedule: Schedule | None = None
    workflow: Workflow | None = None
    limits: Limits | None = None
    runs: Runs | None = None
    pod_template: PodTemplate | None = None
