"""What is filled in on the way in, only where it is absent."""

from __future__ import annotations

from libs.cluster import Object

from . import reading
from .verdict import Operation

LABELS = {"app.kubernetes.io/part-of": "agentctl"}
"""For `kubectl get … -l app.kubernetes.io/part-of=agentctl`: all that belongs to agentctl."""


def patch(thing: Object) -> tuple[Operation, ...]:
    """The change of what is readable, as a JSON Patch (RFC 6902); empty: none."""
    metadata = thing.get("metadata") if reading.kind_of(thing) else None
    labels = metadata.get("labels") if isinstance(metadata, dict) else ()
    if labels is None:
        return ({"op": "add", "path": "/metadata/labels", "value": dict(LABELS)},)
    if not isinstance(labels, dict):
        return ()
    absent = {key: value for key, value in LABELS.items() if key not in labels}
    return tuple(
        {"op": "add", "path": f"/metadata/labels/{_token(key)}", "value": absent[key]} for key in absent
    )


def _token(key: str) -> str:
    """As a JSON Pointer (RFC 6901) spells it."""
    return key.replace("~", "~0").replace("/", "~1")
