"""What the controllers share in reading and making objects."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from copy import deepcopy

from libs.cluster import Cluster, Object, controller_of
from libs.cluster.kinds import POD, Kind
from libs.errors import ConflictError

from .host import FINALIZER, MANAGER, NODE

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes: no vowels, hence no words
_TRIES = 10


async def edited(
    cluster: Cluster, kind: Kind, key: tuple[str, str], change: Callable[[Object], bool]
) -> None:
    """Replaces the object by what `change` makes of it, unless that says that nothing is to be changed.
    NotFoundError; ConflictError if others are always faster."""
    for _ in range(_TRIES):
        thing = await cluster.get(kind, *key)
        if not change(thing):
            return
        try:
            await cluster.replace(thing)
        except ConflictError:
            continue
        return
    raise ConflictError(f"{kind.name} {'/'.join(key)} changes all the time")


async def owned(cluster: Cluster, kind: Kind, owner: Object) -> list[Object]:
    """The objects of a kind that `owner` is the controller of."""
    listing = await cluster.list(kind, owner["metadata"]["namespace"])
    uid = owner["metadata"]["uid"]
    return [thing for thing in listing.items if (controller_of(thing) or {}).get("uid") == uid]


def owner_reference(owner: Object) -> Object:
    """A controller's reference in what it makes."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from(template: Object, owner: Object, name: str, labels: dict[str, str]) -> Object:
    """A new pod of the owner."""
    metadata = deepcopy(template.get("metadata") or {})
    return {
        "apiVersion": POD.api_version,
        "kind": POD.name,
        "metadata": {
            **{key: metadata[key] for key in ("annotations",) if key in metadata},
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": {**metadata.get("labels", {}), **labels},
            "ownerReferences": [owner_reference(owner)],
            "finalizers": [FINALIZER],
        },
        "spec": {**deepcopy(template["spec"]), "nodeName": NODE},
    }


def digest(template: Object) -> str:
    """A short name of a template: the same for the same one."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
    return "".join(_ALPHABET[number // len(_ALPHABET) ** place % len(_ALPHABET)] for place in range(10))


def suffix() -> str:
    """Five random characters."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(5))


def is_ready(pod: Object) -> bool:
    """Whether its condition Ready is True."""
    return condition_of(pod, "Ready").get("status") == "True"


def is_ended(pod: Object) -> bool:
    """Whether it has come to its end, well or not."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_deleted(thing: Object) -> bool:
    """Whether it is to go."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def condition_of(thing: Object, kind: str) -> Object:
    """The condition of that type; empty if there is none."""
    conditions: list[Object] = thing.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def condition(thing: Object, kind: str, status: bool, reason: str, message: str, now: str) -> Object:
    """A condition, whose lastTransitionTime is that of the same one that `thing` has."""
    before = condition_of(thing, kind)
    same = before.get("status") == str(status)
    return {
        "type": kind,
        "status": str(status),
        "reason": reason,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if same else now,
    }


async def write_status(cluster: Cluster, kind: Kind, thing: Object, status: Object) -> None:
    """Makes it the object's status, if it is not. ConflictError if another object has the name by now."""
    if thing.get("status") != status:
        metadata = {key: thing["metadata"][key] for key in ("namespace", "name", "uid")}
        said = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "status": status}
        await cluster.apply(said, MANAGER, subresource="status")
