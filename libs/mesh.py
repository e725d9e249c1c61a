"""The mesh as one table: which components there are, and who may call which method. Default deny.

A method's callers are roles: `cp/<component>`, or a kind of principal (`agent`, `producer`, `user`,
`administrator`; `anonymous` shows no certificate). Finer rules (this agent, this queue) live in the domain
that owns them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """What serves gRPC in the mesh: its name, and its default port."""

    name: str
    port: int
    certified: bool = True
    """Whether its callers show a certificate. If not, only methods for ANONYMOUS are served."""
    role: str = ""
    """Whose certificate it serves with. If empty, `cp/<name>`: there is one of it, which its name says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", self.role or f"cp/{self.name}")


COORDINATION = Component("coordination", 7410)
OPERATOR = Component("operator", 7411)
IDENTITY = Component("operator", 7412, certified=False)
"""The operator's second listener: without client certificates, and for one method only (and health)."""
PLANE = Component("plane", 7413)
AGENT = Component("agent", 7414, role="agent")
"""Every agent's pod. There are many, so who dials one says which it means."""

APISERVER = Component("apiserver", 7415)
ADMISSION = Component("admission", 7416)
SCALER = Component("scaler", 7417)
MODEL_GATEWAY = Component("modelgateway", 7418)
MCP_GATEWAY = Component("mcpgateway", 7419)

ANONYMOUS = "anonymous"
"""The role of a caller without a certificate."""

_OPEN = frozenset({"*"})  # any principal with a believed certificate
_PEOPLE = frozenset({"user", "administrator"})
_PRODUCERS = _PEOPLE | {"producer", "agent", "cp/gateway"}
_WORKERS = _PEOPLE | {"agent"}
_SCALING = frozenset({"cp/keda", "administrator"})

_STEERING = frozenset({"cp/apiserver", "cp/gateway"})
_WATCHING = _PEOPLE | _STEERING | {"cp/operator"}

_AGENT = "/agentctl.agent.v1.AgentService/"
_MANAGEMENT = "/agentctl.management.v1.ManagementService/"
_ADMISSION = "/agentctl.admission.v1.AdmissionService/"
_OPERATOR = "/agentctl.operator.v1.OperatorService/"
_RESOURCES = "/agentctl.resource.v1.ResourceService/"
_COORDINATION = "/agentctl.coordination.v1.CoordinationService/"
_SCALER = "/externalscaler.ExternalScaler/"
_MODELS = "/agentctl.modelgateway.v1.ModelGatewayService/"
_TOOLS = "/agentctl.mcpgateway.v1.McpGatewayService/"

METHODS: dict[str, frozenset[str]] = {
    "/grpc.health.v1.Health/Check": _OPEN | {ANONYMOUS},
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.health.v1.Health/List": _OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _OPEN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _OPEN,
    "/agentctl.identity.v1.IdentityService/IssueCertificate": frozenset({ANONYMOUS}),
    _AGENT + "GetManifest": _WATCHING,
    _AGENT + "GetStatus": _WATCHING,
    _AGENT + "WatchEvents": _WATCHING,
    _AGENT + "Drain": _STEERING,
    _AGENT + "LameDuck": _STEERING,
    _AGENT + "Cancel": _STEERING,
    _AGENT + "Pause": _STEERING,
    _AGENT + "Resume": _STEERING,
    _AGENT + "SendMessage": _STEERING,
    _AGENT + "GetRun": _STEERING,
    _AGENT + "ListRuns": _STEERING,
    _AGENT + "WatchRun": _STEERING,
    _MANAGEMENT + "Drain": _PEOPLE,
    _MANAGEMENT + "LameDuck": _PEOPLE,
    _MANAGEMENT + "Cancel": _PEOPLE,
    _MANAGEMENT + "Pause": _PEOPLE,
    _MANAGEMENT + "Resume": _PEOPLE,
    _MANAGEMENT + "GetStatus": _PEOPLE,
    _ADMISSION + "Review": _PEOPLE | {"cp/plane"},
    _OPERATOR + "Render": _PEOPLE,
    _OPERATOR + "Reconcile": _PEOPLE,
    _OPERATOR + "GetStatus": _PEOPLE,
    _RESOURCES + "Apply": _PEOPLE,
    _RESOURCES + "Get": _PEOPLE,
    _RESOURCES + "List": _PEOPLE,
    _RESOURCES + "Watch": _PEOPLE,
    _RESOURCES + "Delete": _PEOPLE,
    _RESOURCES + "GetLogs": _PEOPLE,
    _RESOURCES + "CreateToken": _PEOPLE,
    _COORDINATION + "Submit": _PRODUCERS,
    _COORDINATION + "Claim": _WORKERS,
    _COORDINATION + "Renew": _WORKERS,
    _COORDINATION + "Ack": _WORKERS,
    _COORDINATION + "Fail": _WORKERS,
    _COORDINATION + "Release": _WORKERS,
    _COORDINATION + "Cancel": _PRODUCERS,
    _COORDINATION + "GetItems": _PRODUCERS,
    _COORDINATION + "ListItems": _PRODUCERS,
    _COORDINATION + "WatchResults": _PRODUCERS,
    _COORDINATION + "GetQueues": _PRODUCERS | {"cp/scaler", "cp/operator"},
    _COORDINATION + "WatchQueues": _PRODUCERS | {"cp/scaler", "cp/operator"},
    _COORDINATION + "ListDeadLetters": _PEOPLE,
    _COORDINATION + "Redrive": _PEOPLE,
    _COORDINATION + "Purge": _PEOPLE,
    _COORDINATION + "ConfigureQueue": _PEOPLE | {"cp/operator"},
    _COORDINATION + "PauseQueue": _PEOPLE | {"cp/operator"},
    _COORDINATION + "ResumeQueue": _PEOPLE | {"cp/operator"},
    _COORDINATION + "ReleaseWorker": _PEOPLE | {"agent", "cp/operator"},
    _COORDINATION + "Explain": _PEOPLE | {"producer", "agent", "cp/gateway", "cp/operator"},
    _SCALER + "IsActive": _SCALING,
    _SCALER + "StreamIsActive": _SCALING,
    _SCALER + "GetMetricSpec": _SCALING,
    _SCALER + "GetMetrics": _SCALING,
    _SCALER + "StreamMetricSpec": _SCALING,
    _MODELS + "Infer": _WORKERS,
    _MODELS + "InferStream": _WORKERS,
    _MODELS + "GetUsage": _WORKERS,
    _MODELS + "ListCalls": _PEOPLE,
    _TOOLS + "ListTools": _WORKERS,
    _TOOLS + "CallTool": _WORKERS,
}
"""Full method name → roles that may call it."""


def lets_in(roles: frozenset[str], role: str) -> bool:
    """Whether a row of the table lets this role call its method."""
    return role in roles or ("*" in roles and role != ANONYMOUS)


def may_call(role: str, method: str) -> bool:
    """Whether the table lets this role call this method."""
    return lets_in(METHODS.get(method, frozenset()), role)
