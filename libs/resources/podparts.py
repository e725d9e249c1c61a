"""The shapes of the parts of a Kubernetes pod that a pod template may hold.

They are schema only: the operator hands the parts on as they were written. What is not here is refused by
name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from libs.contract.environment import ENVIRONMENT, Setter

from .shape import (
    Key,
    Label,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    Quantity,
    Rule,
    atomic,
    one_of,
    ruled,
    text,
)

_Text = Annotated[str, Meta(max_length=4096)]
_Path = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Mode = Annotated[int, Meta(ge=0, le=0o777)]
_THEIRS = [name for name, each in ENVIRONMENT.items() if each.setter is Setter.OWNER]
_EnvName = Annotated[
    str,
    text(253, "^[-._a-zA-Z][-._a-zA-Z0-9]*$", "the name of an environment variable"),
    ruled(
        Rule(
            f"!self.matches('^(AGENT|AGENTCTL|OPENAI)_') || self in {_THEIRS}",
            "AGENT_*, AGENTCTL_* and OPENAI_* are set by us, but for those that the contract leaves to you",
        ),
    ),
]


class _Part(msgspec.Struct, rename="camel", kw_only=True):
    """As in a Kubernetes pod."""


class _KeyRef(_Part):
    """One key of an object."""

    name: Name
    key: Key
    optional: bool | None = None


class _FieldRef(_Part):
    """A field of the pod."""

    field_path: _Path
    api_version: _Text | None = None


class _ResourceFieldRef(_Part):
    """A resource of a container."""

    resource: _Path
    container_name: Label | None = None
    divisor: Quantity | None = None


class _ValueFrom(_Part):
    """Where the value comes from."""

    rules: ClassVar = (one_of("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef"),)

    config_map_key_ref: _KeyRef | None = None
    secret_key_ref: _KeyRef | None = None
    field_ref: _FieldRef | None = None
    resource_field_ref: _ResourceFieldRef | None = None


class EnvVar(_Part):
    """An environment variable."""

    rules: ClassVar = (Rule("!has(self.value) || !has(self.valueFrom)", "value or valueFrom, not both"),)

    name: _EnvName
    value: Annotated[str, Meta(max_length=32768)] | None = None
    value_from: _ValueFrom | None = None


class _SourceRef(_Part):
    """An object by name."""

    name: Name
    optional: bool | None = None


class EnvFrom(_Part):
    """All keys of an object as environment variables."""

    rules: ClassVar = (one_of("configMapRef", "secretRef"),)

    prefix: _Text | None = None
    config_map_ref: _SourceRef | None = None
    secret_ref: _SourceRef | None = None


class Resources(_Part):
    """What the agent asks for and may use at most."""

    requests: Annotated[dict[str, Quantity], Meta(max_length=16)] | None = None
    limits: Annotated[dict[str, Quantity], Meta(max_length=16)] | None = None


class VolumeMount(_Part):
    """Where a volume of the template is mounted."""

    rules: ClassVar = (
        Rule(
            "self.mountPath != '/tmp' && !self.mountPath.startsWith('/run/agentctl')",
            "/tmp and /run/agentctl are mounted by us",
            ".mountPath",
        ),
    )

    name: Label
    mount_path: Annotated[str, text(1024, "^/([^:.]|[.][^:.])*[.]?$", "an absolute path without : and ..")]
    sub_path: _Path | None = None
    read_only: bool | None = None


class Toleration(_Part):
    """A taint that the pods tolerate."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class PullSecret(_Part):
    """A Secret with a registry's credentials."""

    name: Name


class _Expression(_Part):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[list[LabelValue], atomic(64)] | None = None


class _LabelSelector(_Part):
    match_labels: Labels | None = None
    match_expressions: Annotated[list[_Expression], atomic(16)] | None = None


class _NodeTerm(_Part):
    match_expressions: Annotated[list[_Expression], atomic(16)] | None = None
    match_fields: Annotated[list[_Expression], atomic(16)] | None = None


class _NodeSelector(_Part):
    node_selector_terms: Annotated[list[_NodeTerm], atomic(16, least=1)]


class _PreferredNode(_Part):
    weight: Annotated[int, Meta(ge=1, le=100)]
    preference: _NodeTerm


class _NodeAffinity(_Part):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[list[_PreferredNode], atomic(16)] | None
    ) = None


class _PodTerm(_Part):
    topology_key: LabelKey
    label_selector: _LabelSelector | None = None
    namespace_selector: _LabelSelector | None = None
    namespaces: Annotated[list[Label], atomic(16)] | None = None


class _PreferredPod(_Part):
    weight: Annotated[int, Meta(ge=1, le=100)]
    pod_affinity_term: _PodTerm


class _PodAffinity(_Part):
    required_during_scheduling_ignored_during_execution: Annotated[list[_PodTerm], atomic(16)] | None = None
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[list[_PreferredPod], atomic(16)] | None
    ) = None


class Affinity(_Part):
    """Which nodes the pods are for, and beside which pods."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class TopologySpread(_Part):
    """How the pods are spread."""

    max_skew: Annotated[int, Meta(ge=1, le=10_000)]
    topology_key: LabelKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    label_selector: _LabelSelector | None = None
    match_label_keys: Annotated[list[LabelKey], atomic(16)] | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None


class _Item(_Part):
    key: Key
    path: _Path
    mode: _Mode | None = None


_Items = Annotated[list[_Item], atomic(64)]


class _ConfigMapVolume(_Part):
    name: Name
    items: _Items | None = None
    default_mode: _Mode | None = None
    optional: bool | None = None


class _SecretVolume(_Part):
    secret_name: Name
    items: _Items | None = None
    default_mode: _Mode | None = None
    optional: bool | None = None


class _EmptyDir(_Part):
    medium: Literal["", "Memory"] | None = None
    size_limit: Quantity | None = None


class _Claim(_Part):
    claim_name: Name
    read_only: bool | None = None


class _DownwardItem(_Part):
    path: _Path
    mode: _Mode | None = None
    field_ref: _FieldRef | None = None
    resource_field_ref: _ResourceFieldRef | None = None


class _DownwardItems(_Part):
    items: Annotated[list[_DownwardItem], atomic(64)] | None = None


class _DownwardApi(_DownwardItems):
    default_mode: _Mode | None = None


class _ProjectedObject(_Part):
    name: Name
    items: _Items | None = None
    optional: bool | None = None


class _Source(_Part):
    rules: ClassVar = (one_of("configMap", "secret", "downwardAPI"),)

    config_map: _ProjectedObject | None = None
    secret: _ProjectedObject | None = None
    downward_api: _DownwardItems | None = msgspec.field(default=None, name="downwardAPI")


class _Projected(_Part):
    sources: Annotated[list[_Source], atomic(16)] | None = None
    default_mode: _Mode | None = None


class _CsiVolume(_Part):
    driver: Name
    read_only: bool | None = None
    fs_type: _Text | None = None
    volume_attributes: Annotated[dict[str, _Text], Meta(max_length=32)] | None = None


_SOURCES = ("emptyDir", "configMap", "secret", "persistentVolumeClaim", "downwardAPI", "projected", "csi")


class Volume(_Part):
    """A volume of the pods. Paths of the node are not among the sources."""

    rules: ClassVar = (one_of(*_SOURCES),)

    name: Annotated[
        Label, ruled(Rule("!self.startsWith('agentctl-')", "names that begin with agentctl- are ours"))
    ]
    empty_dir: _EmptyDir | None = None
    config_map: _ConfigMapVolume | None = None
    secret: _SecretVolume | None = None
    persistent_volume_claim: _Claim | None = None
    downward_api: _DownwardApi | None = msgspec.field(default=None, name="downwardAPI")
    projected: _Projected | None = None
    csi: _CsiVolume | None = None
