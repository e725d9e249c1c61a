"""How objects are made and changed: which part is the client's, which the home's, and the checks."""

from __future__ import annotations

import base64

from libs.cluster import Object
from libs.cluster.kinds import (
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    NETWORK_POLICY,
    OURS,
    POD,
    POD_DISRUPTION_BUDGET,
    REPLICA_SET,
    SCALED_OBJECT,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)
from libs.errors import InvalidError

from . import merge, rules
from .metadata import shown
from .schema import Validator

WITH_GENERATION = frozenset(
    {
        POD, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, JOB, CRON_JOB, NETWORK_POLICY, POD_DISRUPTION_BUDGET,
        SCALED_OBJECT, *OURS,
    }
)  # fmt: skip
WITH_STATUS = WITH_GENERATION - {NETWORK_POLICY} | {NAMESPACE, SERVICE}
_IDENTITY = ("name", "namespace")
_CLIENTS = ("labels", "annotations", "ownerReferences", "finalizers")
_TYPES: dict[str, tuple[type, str]] = {
    "metadata": (dict, "an object"),
    "metadata.name": (str, "a string"),
    "metadata.namespace": (str, "a string"),
    "metadata.generateName": (str, "a string"),
    "metadata.labels": (dict, "an object"),
    "metadata.annotations": (dict, "an object"),
    "metadata.ownerReferences": (list, "a list"),
    "metadata.finalizers": (list, "a list"),
    "spec": (dict, "an object"),
    "status": (dict, "an object"),
    "data": (dict, "an object"),
    "binaryData": (dict, "an object"),
    "stringData": (dict, "an object"),
}
_validator = Validator()
_PHASES = {POD: "Pending", NAMESPACE: "Active"}


def cleaned(thing: Object) -> Object:
    """A copy of what somebody said, without nulls, a Secret's text as data. InvalidError."""
    said: Object = merge.without_nulls(thing)
    said.setdefault("metadata", {})
    if wrong := _of_wrong_type(said):
        raise InvalidError(violations=wrong)
    if texts := said.pop("stringData", {}) if said.get("kind") == SECRET.name else {}:
        encoded = {key: _encoded(key, text) for key, text in texts.items()}
        said["data"] = said.get("data", {}) | encoded
    return said


def _encoded(key: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidError(violations={f"stringData[{shown(key)}]": "must be a string"})
    try:
        return base64.b64encode(text.encode()).decode()
    except UnicodeEncodeError as error:
        raise InvalidError(violations={f"stringData[{shown(key)}]": f"no text: {error.reason}"}) from error


def _of_wrong_type(said: Object) -> dict[str, str]:
    """What the rest here relies on, and is not so."""
    wrong: dict[str, str] = {}
    for where, (kind, what) in _TYPES.items():
        *above, key = where.split(".")
        holder = said["metadata"] if above else said
        if isinstance(holder, dict) and not isinstance(holder.get(key, kind()), kind):
            wrong[where] = f"must be {what}"
    return wrong


def claims(kind: Kind, said: Object, subresource: str) -> Object:
    """The part of a document that counts: what a client may say there."""
    metadata = {key: value for key, value in said["metadata"].items() if key in _IDENTITY}
    result: Object = {"apiVersion": said["apiVersion"], "kind": said["kind"], "metadata": metadata}
    if subresource:
        return result | {"status": said.get("status", {})}
    metadata |= {key: value for key, value in said["metadata"].items() if key in _CLIENTS}
    status = ("status",) if kind in WITH_STATUS else ()
    return result | {key: value for key, value in said.items() if key not in {*result, *status}}


def named(kind: Kind, name: str, namespace: str = "") -> Object:
    """An object that has nothing but its name."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}


def initial(kind: Kind, document: Object) -> Object:
    """A new object with what the home adds."""
    made: Object = document | {"metadata": dict(document["metadata"])}
    metadata = made["metadata"]
    if kind in WITH_GENERATION:
        metadata["generation"] = 1
    if kind in _PHASES:
        made["status"] = {"phase": _PHASES[kind]}
    if kind == NAMESPACE:
        metadata["labels"] = metadata.get("labels", {}) | {"kubernetes.io/metadata.name": metadata["name"]}
    if kind == SECRET:
        made.setdefault("type", "Opaque")
    return made


def replaced(kind: Kind, said: Object, live: Object) -> Object:
    """The live object with all that is the client's taken from `said`."""
    result = claims(kind, said, "")
    kept = {key: value for key, value in live["metadata"].items() if key not in _CLIENTS}
    result["metadata"] = kept | result["metadata"]
    if kind in WITH_STATUS and "status" in live:
        result["status"] = live["status"]
    return result


def checked(kind: Kind, thing: Object, before: Object | None) -> Object:
    """The object with defaults, if it may be so. InvalidError."""
    rules.check(kind, thing, before)
    return _validator.validated(thing, before) if kind in OURS else thing


def is_respecified(kind: Kind, thing: Object, before: Object) -> bool:
    """Whether more than metadata and status differs, in a kind that counts that."""
    return kind in WITH_GENERATION and _spec(thing) != _spec(before)


def _spec(thing: Object) -> Object:
    return {key: value for key, value in thing.items() if key not in ("metadata", "status")}
