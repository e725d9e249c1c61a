"""What may be said about the pods of an agent: a safe part of a pod template."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from . import podparts
from .shape import Labels, Name, Rule, Shape, atomic, keyed, ruled

_Objects = list[dict[str, Any]]
_Word = Annotated[str, Meta(max_length=4096)]

_OURS = Rule(
    "self.all(key, !key.startsWith('agentctl.dev/') && !key.startsWith('app.kubernetes.io/'))",
    "keys under agentctl.dev/ and app.kubernetes.io/ are ours",
)
_QUALIFIED = Rule(
    "self.all(key, key.size() <= 317 && "
    "key.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
    "a key is a name of at most 63 letters, digits, -, . and _, perhaps after a domain and /",
)


class TemplateMetadata(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Added to the pods' own; agentctl.dev/ and app.kubernetes.io/ keys are ours."""

    labels: Annotated[Labels, ruled(_OURS, _QUALIFIED)] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=65536)]], Meta(max_length=32), ruled(_OURS, _QUALIFIED)
    ] = {}


class AgentContainer(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The agent's container. Objects are as in a Kubernetes pod."""

    name: Literal["agent"] = "agent"
    """There is no other container."""
    command: Annotated[list[_Word], atomic(64)] = []
    """Instead of the image's entrypoint."""
    args: Annotated[list[_Word], atomic(256)] = []
    """Its arguments."""
    env: Annotated[_Objects, Shape(list[podparts.EnvVar]), keyed("name", 128)] = []
    """Added to ours."""
    env_from: Annotated[_Objects, Shape(list[podparts.EnvFrom]), atomic(16)] = []
    """ConfigMaps and Secrets whose keys become environment variables; ours win."""
    resources: Annotated[dict[str, Any], Shape(podparts.Resources)] = {}
    """Absent: requests of 100m CPU and 128Mi."""
    volume_mounts: Annotated[_Objects, Shape(list[podparts.VolumeMount]), keyed("mountPath", 32)] = []
    """Mounts of the volumes below."""
    image_pull_policy: Annotated[
        str, Meta(extra_json_schema={"enum": ["Always", "IfNotPresent", "Never"]})
    ] = ""
    """When the image is pulled. Absent: as Kubernetes does."""


class TemplateSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Scheduling, volumes and the like. Security context, identity and probes are ours."""

    rules: ClassVar = (
        Rule(
            "!has(self.containers) || self.containers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, "
            "has(self.volumes) && self.volumes.exists(v, v.name == m.name)))",
            "every volumeMount names one of spec.volumes",
        ),
    )

    containers: Annotated[list[AgentContainer], keyed("name", 1)] = []
    """The container `agent`."""
    service_account_name: Name = ""
    """Absent: the namespace's default. Its token is not mounted."""
    image_pull_secrets: Annotated[
        list[dict[str, str]], Shape(list[podparts.PullSecret]), keyed("name", 16)
    ] = []
    """Secrets of the namespace for the registry of the image."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[_Objects, Shape(list[podparts.Toleration]), atomic(16)] = []
    """Taints of nodes that do not matter."""
    affinity: Annotated[dict[str, Any], Shape(podparts.Affinity)] = {}
    topology_spread_constraints: Annotated[_Objects, Shape(list[podparts.TopologySpread]), atomic(16)] = []
    """How the pods are spread over nodes and zones."""
    priority_class_name: Name = ""
    """Which pods go first."""
    runtime_class_name: Name = ""
    """A sandbox, such as gvisor."""
    termination_grace_period_seconds: Annotated[int, Meta(ge=30, le=3600)] | None = None
    """Seconds from SIGTERM to the end by force; an agent uses 25, a fleet's work.drain. Absent: 10 more."""
    volumes: Annotated[_Objects, Shape(list[podparts.Volume]), keyed("name", 32)] = []
    """Added to ours, whose names begin with agentctl-."""


class PodTemplate(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Merged into the rendered pods."""

    metadata: TemplateMetadata = msgspec.field(default_factory=TemplateMetadata)
    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)
