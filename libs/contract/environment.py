"""The environment that an agent is started with: every variable of the contract. Frozen: contract 1.1.

An agent reads what it has a use for, and refuses with exit code 2 what it understands and cannot do. Newer
minor versions add variables; none changes its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .manifest import MODES

PREFIXES = ("AGENT_", "AGENTCTL_", "OPENAI_")
"""What begins so is the contract's; everything else in an environment is not its business."""

REQUIRED = "required"
"""In place of a default: without it there is exit code 2."""

_ENDING = ("once", "workflow")
_MOST_SHARDS = 1024


class Setter(StrEnum):
    """Who says it, in a pod."""

    OPERATOR = "operator"
    OWNER = "owner"  # in the manifest's spec.podTemplate; the operator sets nothing


@dataclass(frozen=True, slots=True)
class Variable:
    """One row."""

    name: str
    meaning: str
    default: str = ""
    """What holds without it; empty: nothing is, or there is no limit."""
    setter: Setter = Setter.OPERATOR
    source: str = ""
    """What the operator makes it of: a field of the declared object, of a fleet in its template, or else."""
    modes: tuple[str, ...] = MODES


def _owner(name: str, meaning: str, default: str = "", modes: tuple[str, ...] = MODES) -> Variable:
    return Variable(name, meaning, default, Setter.OWNER, "", modes)


def _operator(
    name: str, source: str, meaning: str, default: str = "", modes: tuple[str, ...] = MODES
) -> Variable:
    return Variable(name, meaning, default, Setter.OPERATOR, source, modes)


_WORK = (
    _operator("AGENT_MODE", "spec.mode", "when it runs", "claim, if AGENT_QUEUE is set"),
    _operator("AGENT_INSTRUCTION", "spec.instruction", "what to do, in words"),
    _owner("AGENT_INSTRUCTION_FILE", "a file that says it, UTF-8; not beside AGENT_INSTRUCTION"),
    _operator(
        "AGENT_QUEUE", "spec.work.queue", "the queue to claim from, namespace/name", REQUIRED, ("claim",)
    ),
    _operator(
        "AGENT_SHARD_INDEX",
        "the pod's index",
        "the shard of the queue that is its own, from 0; beside the next two, or none of the three",
        "the queue has no shards",
        ("claim",),
    ),
    _operator(
        "AGENT_SHARD_COUNT",
        "spec.replicas",
        "shards of the queue, 1 to 1024",
        "the queue has no shards",
        ("claim",),
    ),
    _operator(
        "AGENT_SHARD_EPOCH",
        "coordination",
        "which division of the queue that is, from 1; it grows with each",
        "the queue has no shards",
        ("claim",),
    ),
    _operator("AGENT_SLOTS", "spec.work.slots", "runs at the same time", "4"),
    _operator(
        "AGENT_LEASE",
        "spec.work.lease",
        "how long an item is its own without a sign of life; renewed at a third of it",
        "30s",
        ("claim",),
    ),
    _operator(
        "AGENT_LOOP_INTERVAL",
        "spec.loop.interval",
        "from the end of a run to the start of the next",
        REQUIRED,
        ("loop",),
    ),
    _operator(
        "AGENT_SUBSCRIBE",
        "spec.subscribe",
        "URIs of resources whose changes wake it, a JSON list",
        REQUIRED,
        ("reactive",),
    ),
    _operator("AGENT_WORKFLOW_FILE", "spec.workflow", "the document with its steps", REQUIRED, ("workflow",)),
    _owner(
        "AGENT_STATE_DIR",
        "a folder where finished steps are kept, which a process that starts anew skips",
        modes=("workflow",),
    ),
    _operator(
        "AGENT_RUN_ID",
        "the Job's uid",
        "the run's id, the same over a Job's retries",
        "a new one",
        _ENDING,
    ),
    _operator("AGENT_REPORT_FILE", "/dev/termination-log", "where the report goes", "", _ENDING),
)

_MODEL_AND_TOOLS = (
    _operator("AGENT_MODEL", "spec.model.id", "the model to ask, as its provider calls it"),
    _operator("OPENAI_BASE_URL", "the pool's endpoint", "where the OpenAI-compatible API is"),
    _operator(
        "AGENT_MODEL_CA_FILE",
        "the trust bundle",
        "authorities that are believed at https endpoints beside the system's; may change in place",
    ),
    _operator(
        "AGENT_MODEL_IDENTITY",
        "the operator's setting",
        "true: OPENAI_BASE_URL is a gateway of the mesh, by https: the agent shows it the certificate in "
        "AGENTCTL_TLS_DIR, the one of the moment, and believes the ca.crt there besides",
        "no certificate is shown",
    ),
    _owner("AGENT_MODEL_TIMEOUT", "the longest one answer of the model may take", "120s"),
    _owner("OPENAI_API_KEY", "bearer token for the model; better as a file, best at a gateway"),
    _owner("OPENAI_API_KEY_FILE", "a file with that token, which may be rotated in place"),
    _operator(
        "AGENT_MCP_SERVERS",
        "spec.mcpServers",
        'servers of tools and resources, a JSON list of {"name", "endpoint", "tags", "identity"}; '
        '"identity": true says of a server what AGENT_MODEL_IDENTITY says of the model',
    ),
    _owner("AGENT_TOOL_TIMEOUT", "the longest one call of a tool may take; then the model is told so", "60s"),
)

_LIMITS = (
    _operator("AGENT_MAX_STEPS", "spec.limits.maxSteps", "turns with the model, a run", "50"),
    _operator("AGENT_MAX_TOKENS", "spec.limits.maxTokens", "tokens of prompts and answers together, a run"),
    _operator("AGENT_MAX_DEPTH", "spec.limits.maxDepth", "agents that a message may have come through", "4"),
    _operator("AGENT_DEADLINE", "spec.limits.deadline", "the longest a run may take"),
)

_PROCESS = (
    _operator("AGENT_HOST", "the pod's address", "where both ports listen", "127.0.0.1"),
    _owner("AGENT_PORT", "gRPC: AgentService", "7414"),
    _operator("AGENT_METRICS_PORT", "9090", "plain HTTP: /metrics, /livez, /readyz", "9090"),
    _owner("AGENT_START_TIMEOUT", "how long it waits at its start for what it needs", "30s"),
    _operator(
        "AGENT_DRAIN_TIMEOUT",
        "spec.work.drain",
        "after SIGTERM, the time to finish what is begun; less than the pod's grace",
        "25s",
    ),
    _owner(
        "AGENTCTL_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR; logs go to stderr, a JSON object a line", "INFO"
    ),
)

_IDENTITY = (
    _operator(
        "AGENTCTL_TLS_DIR",
        "memory of the pod",
        "folder of its certificate and of whom it trusts: tls.crt, tls.key, ca.crt, one file a trust class",
        REQUIRED,
    ),
    _operator(
        "AGENTCTL_IDENTITY_ADDRESS",
        "the operator's own",
        "host:port of IdentityService, by which the agent fills that folder and renews what is in it",
        "somebody else fills it",
    ),
    _operator("AGENTCTL_TOKEN_FILE", "a projected token", "proof of which pod this is; read anew each time"),
    _operator("AGENTCTL_TRUST_DIR", "the trust bundle", "whom to believe; may change in place"),
    _operator(
        "AGENTCTL_COORDINATION_ADDRESS",
        "the operator's setting",
        "host:port of coordination",
        "127.0.0.1:7410",
        ("claim",),
    ),
    _operator("AGENTCTL_POD_NAME", "the pod's name", "told in the manifest"),
    _operator("AGENTCTL_POD_UID", "the pod's uid", "told in the manifest"),
    _operator("AGENTCTL_POD_NAMESPACE", "the pod's namespace", "told in the manifest"),
    _operator("AGENTCTL_NODE_NAME", "the node's name", "told in the manifest"),
)

GROUPS: dict[str, tuple[Variable, ...]] = {
    "What to do": _WORK,
    "Model and tools": _MODEL_AND_TOOLS,
    "Limits of a run": _LIMITS,
    "Process": _PROCESS,
    "Identity and place": _IDENTITY,
}
"""Every row, in the order of the page."""

ENVIRONMENT: dict[str, Variable] = {each.name: each for group in GROUPS.values() for each in group}
"""Every row, by name."""


def shard_rules(index: int | None, count: int | None, epoch: int | None) -> list[tuple[bool, str]]:
    """What has to hold of the three AGENT_SHARD_ variables, each with what to say where it does not."""
    said = {"INDEX": index, "COUNT": count, "EPOCH": epoch}
    missing = ", ".join(f"AGENT_SHARD_{name}" for name, value in said.items() if value is None)
    if index is None or count is None or epoch is None:
        return [
            (len(missing.split()) == len(said), f"{missing}: missing; set all three AGENT_SHARD_ or none")
        ]
    return [
        (1 <= count <= _MOST_SHARDS, f"AGENT_SHARD_COUNT: {count} is not 1 to {_MOST_SHARDS}"),
        (
            0 <= index < count,
            f"AGENT_SHARD_INDEX: {index} is not 0 to AGENT_SHARD_COUNT - 1, which is {count - 1}",
        ),
        (1 <= epoch < 2**63, f"AGENT_SHARD_EPOCH: {epoch} is not 1 to 2^63 - 1"),
    ]


def unknown(names: Iterable[str]) -> set[str]:
    """Those of the names that are the contract's by their prefix, and yet have no row."""
    return {name for name in names if name.startswith(PREFIXES)} - ENVIRONMENT.keys()
