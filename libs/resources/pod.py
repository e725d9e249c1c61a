"""What may be said about the pods of an agent: a safe part of a pod template."""

from __future__ import annotations

from typing import Any

import msgspec


class TemplateMetadata(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Added to the pods' own; agentctl.dev/ and app.kubernetes.io/ keys are ours."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class AgentContainer(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The agent's container. Objects are as in a Kubernetes pod."""

    name: str = "agent"
    command: list[str] = []
    args: list[str] = []
    env: list[dict[str, Any]] = []
    env_from: list[dict[str, Any]] = []
    resources: dict[str, Any] = {}
    volume_mounts: list[dict[str, Any]] = []
    image_pull_policy: str = ""


class TemplateSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Scheduling, volumes and the like. Security context, identity and probes are ours."""

    containers: list[AgentContainer] = []
    service_account_name: str = ""
    image_pull_secrets: list[dict[str, str]] = []
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    topology_spread_constraints: list[dict[str, Any]] = []
    priority_class_name: str = ""
    runtime_class_name: str = ""
    termination_grace_period_seconds: int | None = None
    volumes: list[dict[str, Any]] = []


class PodTemplate(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Merged into the rendered pods."""

    metadata: TemplateMetadata = msgspec.field(default_factory=TemplateMetadata)
    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)
