"""spec.podTemplate: what people may say about an agent's pods, merged into what we say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from libs.cluster import Object
from libs.resources.pod import AgentContainer, PodTemplate

from .duration import seconds
from .owned import RESERVED

CONTAINER = "agent"
VOLUME_PREFIX = "agentctl-"
"""Names of our volumes begin so."""

DRAIN = "25s"
"""How long an agent drains, unless the fleet says otherwise."""
_AFTER_DRAIN_SECONDS = 10
"""To hand back what is left, and to end."""

_THEIRS = ("command", "envFrom", "imagePullPolicy")
_REQUESTS = {"cpu": "100m", "memory": "128Mi"}


def merge(pod: Object, template: PodTemplate, drain: str = "") -> Object:
    """The pod template with what people said. What we said stays: by name for env, by path for mounts.
    Without a grace of theirs there is time for `drain`."""
    said = msgspec.to_builtins(template.spec)
    theirs = msgspec.to_builtins(_container(template))
    return {
        "metadata": {
            "labels": _free(template.metadata.labels) | pod["metadata"]["labels"],
            "annotations": _free(template.metadata.annotations) | pod["metadata"].get("annotations", {}),
        },
        "spec": {
            "terminationGracePeriodSeconds": seconds(drain or DRAIN) + _AFTER_DRAIN_SECONDS,
            **said,
            **pod["spec"],
            "containers": [_merged(pod["spec"]["containers"][0], theirs)],
            "volumes": _joined(pod["spec"]["volumes"], said.get("volumes", ()), "name"),
        },
    }


def _container(template: PodTemplate) -> AgentContainer:
    return template.spec.containers[0] if template.spec.containers else AgentContainer()


def _free(keys: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if not key.startswith(RESERVED)}


def _merged(ours: Object, theirs: Object) -> Object:
    """One container. Its command is theirs if they say any; without, that of the image or ours. Their args
    come after ours."""
    args = [*ours.get("args", ()), *theirs.get("args", ())]
    return {
        **ours,
        **{key: theirs[key] for key in _THEIRS if key in theirs},
        **({"args": args} if args else {}),
        "env": _joined(ours["env"], theirs.get("env", ()), "name"),
        "volumeMounts": _joined(ours["volumeMounts"], theirs.get("volumeMounts", ()), "mountPath"),
        "resources": _resources(theirs.get("resources", {})),
    }


def _joined(ours: Sequence[Object], theirs: Sequence[Object], key: str) -> list[Object]:
    taken = {thing[key] for thing in ours}
    return [*ours, *(thing for thing in theirs if thing.get(key) not in taken)]


def _resources(said: dict[str, Any]) -> Object:
    """A request that is not said is the limit, as Kubernetes has it; without that, ours."""
    requests, limits = said.get("requests") or {}, said.get("limits") or {}
    ours = {key: value for key, value in _REQUESTS.items() if key not in limits}
    return {**said, "requests": ours | requests}
