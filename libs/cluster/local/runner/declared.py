"""The parts of workloads that we read, as types: what is not so is refused before anything is made of it.

Only the types are said here; what an absent field means is said where it is read. Fields that we do not read
are not looked at: a manifest that a Kubernetes takes is taken here too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from libs.cluster import Object
from libs.cluster.kinds import CRON_JOB, DEPLOYMENT, JOB, POD, STATEFUL_SET, Kind
from libs.errors import InvalidError

_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Mode = Annotated[int, msgspec.Meta(ge=0, le=0o777)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]  # it becomes a file's
_Port = _Positive | str
_Share = _Natural | Annotated[str, msgspec.Meta(pattern=r"\A[0-9]+%\Z")]


class _Part(msgspec.Struct, rename="camel"):
    pass


class _Reference(_Part):
    name: str
    key: str = ""
    optional: bool = False


class _KeyReference(_Part):
    name: str
    key: str
    optional: bool = False


class _Field(_Part):
    field_path: str


class _Source(_Part):
    field_ref: _Field | None = None
    config_map_key_ref: _KeyReference | None = None
    secret_key_ref: _KeyReference | None = None


class _Variable(_Part):
    name: Annotated[str, msgspec.Meta(pattern=r"\A[^=\x00]+\Z")]
    value: str = ""
    value_from: _Source | None = None


class _Variables(_Part):
    prefix: str = ""
    config_map_ref: _Reference | None = None
    secret_ref: _Reference | None = None


class _Header(_Part):
    name: str
    value: str


class _Target(_Part):
    port: _Port
    host: str = ""
    path: str = "/"
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    http_headers: list[_Header] = []


class _Probe(_Part):
    http_get: _Target | None = None
    tcp_socket: _Target | None = None
    initial_delay_seconds: _Natural = 0
    period_seconds: _Positive = 10
    timeout_seconds: _Positive = 1
    failure_threshold: _Positive = 3
    success_threshold: _Positive = 1


class _Exec(_Part):
    command: Annotated[list[str], msgspec.Meta(min_length=1)]


class _Sleep(_Part):
    seconds: _Natural


class _Hook(_Part):
    http_get: _Target | None = None
    exec: _Exec | None = None
    sleep: _Sleep | None = None


class _Lifecycle(_Part):
    pre_stop: _Hook | None = None


class _Mount(_Part):
    name: str
    mount_path: Annotated[str, msgspec.Meta(pattern=r"\A/.")]
    sub_path: str = ""
    sub_path_expr: str = ""


class _ContainerPort(_Part):
    container_port: _Positive
    name: str = ""


class _Container(_Part):
    name: _Name
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[_Variable] = []
    env_from: list[_Variables] = []
    ports: list[_ContainerPort] = []
    volume_mounts: list[_Mount] = []
    startup_probe: _Probe | None = None
    readiness_probe: _Probe | None = None
    liveness_probe: _Probe | None = None
    lifecycle: _Lifecycle | None = None
    restart_policy: str = ""
    termination_message_path: str = ""


class _Item(_Part):
    path: str
    key: str = ""
    field_ref: _Field | None = None


class _Files(_Part):
    name: str = ""
    secret_name: str = ""
    items: list[_Item] | None = None
    optional: bool = False
    default_mode: _Mode = 0


class _Token(_Part):
    path: str
    audience: str = ""
    expiration_seconds: _Positive = 3600


class _Projection(_Part):
    config_map: _Files | None = None
    secret: _Files | None = None
    downward_api: _Files | None = msgspec.field(name="downwardAPI", default=None)
    service_account_token: _Token | None = None


class _Projected(_Part):
    sources: list[_Projection] = []


class _Volume(_Part):
    name: _Name
    config_map: _Files | None = None
    secret: _Files | None = None
    downward_api: _Files | None = msgspec.field(name="downwardAPI", default=None)
    projected: _Projected | None = None


class _Pod(_Part):
    containers: Annotated[list[_Container], msgspec.Meta(min_length=1)]
    init_containers: list[_Container] = []
    volumes: list[_Volume] = []
    restart_policy: Literal["Always", "OnFailure", "Never"] = "Always"
    termination_grace_period_seconds: _Natural = 30
    service_account_name: str = "default"
    node_name: str = ""


class _Metadata(_Part):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Template(_Part):
    spec: _Pod
    metadata: _Metadata | None = None


class _LastingPod(_Pod):
    restart_policy: Literal["Always"] = "Always"


class _LastingTemplate(_Part):
    spec: _LastingPod
    metadata: _Metadata | None = None


class _Rolling(_Part):
    max_surge: _Share = 1
    max_unavailable: _Share = 0
    partition: _Natural = 0


class _Strategy(_Part):
    type: str = ""
    rolling_update: _Rolling | None = None


class _Deployment(_Part):
    template: _LastingTemplate
    replicas: _Natural = 1
    paused: bool = False
    strategy: _Strategy | None = None


class _StatefulSet(_Part):
    template: _LastingTemplate
    replicas: _Natural = 1
    service_name: str = ""
    update_strategy: _Strategy | None = None
    pod_management_policy: str = ""


class _ExitCodes(_Part):
    operator: Literal["In", "NotIn"]
    values: list[int]
    container_name: str | None = None


class _Pattern(_Part):
    type: str
    status: str = "True"


class _Rule(_Part):
    action: Literal["FailJob", "Ignore", "Count"]
    on_exit_codes: _ExitCodes | None = None
    on_pod_conditions: list[_Pattern] = []


class _FailurePolicy(_Part):
    rules: list[_Rule] = []


class _Job(_Part):
    template: _Template
    suspend: bool = False
    completions: _Natural = 1
    parallelism: _Natural = 1
    backoff_limit: _Natural = 6
    active_deadline_seconds: _Positive | None = None
    ttl_seconds_after_finished: _Natural | None = None
    pod_failure_policy: _FailurePolicy | None = None


class _JobTemplate(_Part):
    spec: _Job
    metadata: _Metadata | None = None


class _CronJob(_Part):
    schedule: str
    job_template: _JobTemplate
    time_zone: str | None = None
    suspend: bool = False
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    starting_deadline_seconds: _Natural | None = None
    successful_jobs_history_limit: _Natural = 3
    failed_jobs_history_limit: _Natural = 1


_SPECS: dict[Kind, Any] = {
    POD: _Pod, DEPLOYMENT: _Deployment, STATEFUL_SET: _StatefulSet, JOB: _Job, CRON_JOB: _CronJob,
}  # fmt: skip


def check(kind: Kind, thing: Object) -> None:
    """InvalidError that names the field of its spec that is not what it must be."""
    try:
        msgspec.convert(thing.get("spec"), _SPECS[kind])
    except msgspec.ValidationError as error:
        raise InvalidError(str(error).replace("$", "spec")) from error
