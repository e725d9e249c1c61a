"""The kinds of object that we read and write, and where an API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: its API group and version, its name, and the plural that paths use."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects spell it: apps/v1, or v1 for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As RBAC and kubectl spell it: agents.agentctl.dev."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
POD = Kind("", "v1", "Pod", "pods")
SERVICE = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
EVENT = Kind("events.k8s.io", "v1", "Event", "events")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
JOB = Kind("batch", "v1", "Job", "jobs")
CRON_JOB = Kind("batch", "v1", "CronJob", "cronjobs")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
API_SERVICE = Kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)

_ADMISSION = ("admissionregistration.k8s.io", "v1")
VALIDATING_WEBHOOKS = Kind(
    *_ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", namespaced=False
)
MUTATING_WEBHOOKS = Kind(
    *_ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", namespaced=False
)

POD_METRICS = Kind("metrics.k8s.io", "v1beta1", "PodMetrics", "pods")

AGENT = Kind("agentctl.dev", "v1alpha1", "Agent", "agents")
AGENT_FLEET = Kind("agentctl.dev", "v1alpha1", "AgentFleet", "agentfleets")
MODEL_POOL = Kind("agentctl.dev", "v1alpha1", "ModelPool", "modelpools")
MCP_SERVER_SET = Kind("agentctl.dev", "v1alpha1", "MCPServerSet", "mcpserversets")

OURS = (AGENT, AGENT_FLEET, MODEL_POOL, MCP_SERVER_SET)
"""The kinds that people declare."""

KINDS = (
    NAMESPACE, POD, SERVICE, SERVICE_ACCOUNT, CONFIG_MAP, SECRET, EVENT, LEASE, DEPLOYMENT, REPLICA_SET,
    STATEFUL_SET, JOB, CRON_JOB, NETWORK_POLICY, POD_DISRUPTION_BUDGET, SCALED_OBJECT, ENDPOINT_SLICE,
    CLUSTER_ROLE, API_SERVICE, VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS, POD_METRICS, *OURS,
)  # fmt: skip
_BY_NAME = {(kind.api_version, kind.name): kind for kind in KINDS}


def kind_of(api_version: str, name: str) -> Kind:
    """The kind that an object or an owner reference names. KeyError for one that we do not handle."""
    return _BY_NAME[api_version, name]


_SHORT = {
    "ag": AGENT, "afleet": AGENT_FLEET, "fleet": AGENT_FLEET, "fleets": AGENT_FLEET, "mp": MODEL_POOL,
    "pool": MODEL_POOL, "pools": MODEL_POOL,
    "mcpset": MCP_SERVER_SET, "ns": NAMESPACE, "po": POD, "svc": SERVICE, "sa": SERVICE_ACCOUNT,
    "cm": CONFIG_MAP, "ev": EVENT, "deploy": DEPLOYMENT, "rs": REPLICA_SET, "sts": STATEFUL_SET,
    "cj": CRON_JOB, "netpol": NETWORK_POLICY, "pdb": POD_DISRUPTION_BUDGET,
    "so": SCALED_OBJECT,
}  # fmt: skip
_NAMED = {
    **{name: kind for kind in reversed(KINDS) for name in (kind.name.lower(), kind.plural, kind.resource)},
    **_SHORT,
}


def kind_named(word: str) -> Kind:
    """The kind that a person means: AgentFleet, agentfleets, agentfleets.agentctl.dev or afleet, in any
    case. KeyError if there is none."""
    return _NAMED[word.lower()]
