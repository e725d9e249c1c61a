"""An agent's pod, as every workload of ours has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from libs.cluster import Object
from libs.resources.pod import PodTemplate

from . import agentd, environment, template
from .context import Context
from .duration import seconds
from .environment import GRPC_PORT, METRICS_PORT, TLS, TMP, TOKEN, TRUST, Part
from .owned import CONTENT_HASH, digest

AUDIENCE = "agentctl-identity"
_USER = 65532
_HOUR, _DAY = 3600, 86400


def pod_template(
    labels: Mapping[str, str],
    part: Part,
    told: Sequence[Object],
    context: Context,
    mounted: Mapping[str, Object] | None = None,
    queue: str = "",
    drain: str = "",
) -> Object:
    """The pod template for `part`, told `told` besides what every agent is told. `mounted`: folder → volume
    source, read-only; `queue`: what it claims from; `drain`: how long it may go on when it has to end. Meets
    the restricted pod security standard; its one credential is its token."""
    volumes: dict[str, Object] = {
        TOKEN: _token(seconds(drain or template.DRAIN)),
        TRUST: {"configMap": {"name": "agentctl-trust"}},
        **(mounted or {}),
    }
    writable: dict[str, Object] = {
        TLS: {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        TMP: {"emptyDir": {}},
    }
    pod: Object = {
        "metadata": {"labels": dict(labels)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": template.CONTAINER,
                    **_image(part, context),
                    "env": [*told, *environment.common(part, context)],
                    "ports": [_port("metrics", METRICS_PORT), _port("grpc", GRPC_PORT)],
                    **_probes(),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        *({"name": _name(path), "mountPath": path, "readOnly": True} for path in volumes),
                        *({"name": _name(path), "mountPath": path} for path in writable),
                    ],
                }
            ],
            "volumes": [{"name": _name(path), **source} for path, source in (volumes | writable).items()],
        },
    }
    if part.contract == "agentd-1":
        pod = agentd.beside(pod, part, context, queue, drain)
    return template.merge(pod, part.pod_template or PodTemplate(), drain)


def rolling(pod: Object, hashes: Mapping[str, str]) -> Object:
    """The same, and anew whenever the content of a ConfigMap or Secret that it names changes. For pods that
    live on: one that runs to its end keeps what it began with."""
    if not hashes:
        return pod
    annotations = {**pod["metadata"]["annotations"], CONTENT_HASH: digest(dict(hashes))}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


def _image(part: Part, context: Context) -> Object:
    is_foreign = part.contract == "agentd-1"
    if part.image and not is_foreign:
        return {"image": part.image}
    return {
        "image": context.settings.agent_image,
        "imagePullPolicy": "IfNotPresent",  # ours has a fixed tag
        "command": [agentd.COMMAND if is_foreign else "agentctl-agent"],
    }


def _port(name: str, port: int) -> Object:
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def _token(drain: int) -> Object:
    """One that is good for `drain` seconds (24 h at the most) whenever the pod has to end: kubelets renew it
    at 80 % of its life and each day, but no more once the pod is to end."""
    lifetime = max(_HOUR, min(5 * drain, drain + _DAY))
    token = {"audience": AUDIENCE, "expirationSeconds": lifetime, "path": "token"}
    return {"projected": {"sources": [{"serviceAccountToken": token}]}}


def _probes() -> Object:
    def of(path: str, period: int, failures: int) -> Object:
        return {
            "httpGet": {"path": path, "port": "metrics"},
            "periodSeconds": period,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": of("/readyz", 1, 90),
        "readinessProbe": of("/readyz", 5, 3),
        "livenessProbe": of("/livez", 10, 3),
    }


def _name(path: str) -> str:
    return template.VOLUME_PREFIX + path.rpartition("/")[2]
