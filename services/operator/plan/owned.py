"""What every object of a plan says about itself: whose it is, and what it was made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from libs.cluster import Object, key_of
from libs.cluster.kinds import AGENT_FLEET, Kind

AGENT_LABEL = "agentctl.dev/agent"
FLEET_LABEL = "agentctl.dev/fleet"
ROLE_LABEL = "agentctl.dev/role"
TEMPLATE_HASH = "agentctl.dev/template-hash"
SPEC_HASH = "agentctl.dev/spec-hash"
CONTENT_HASH = "agentctl.dev/content-hash"
RESERVED = ("agentctl.dev/", "app.kubernetes.io/")
"""Prefixes of label and annotation keys that are ours."""


def digest(value: Any) -> str:
    """A short hash of a JSON value, the same whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def labels(thing: Object, agent: str) -> dict[str, str]:
    """The labels of what is made for `agent`: the object itself, or the coordinator of a fleet."""
    ours = {
        "app.kubernetes.io/managed-by": "agentctl",
        "app.kubernetes.io/name": "agent",
        "app.kubernetes.io/part-of": "agentctl",
        AGENT_LABEL: agent,
    }
    if thing["kind"] == AGENT_FLEET.name:
        fleet = key_of(thing)[1]
        ours |= {FLEET_LABEL: fleet, ROLE_LABEL: "worker" if agent == fleet else "coordinator"}
    return ours


def label(thing: Object, name: str) -> str:
    """A label of a live object, which anybody may have written; empty if there is none, or no text."""
    found = thing["metadata"].get("labels")
    text = found.get(name) if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def owned(
    thing: Object, agent: str, kind: Kind, name: str, body: Object, notes: Mapping[str, str] | None = None
) -> Object:
    """An object of the plan. Its controller is `thing`: it goes when that goes. `notes` are annotations; they
    are part of what it is made from."""
    made_from = {**body, "notes": dict(notes)} if notes else body
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": key_of(thing)[0],
            "labels": labels(thing, agent),
            "annotations": {TEMPLATE_HASH: digest(made_from), **(notes or {})},
            "ownerReferences": [
                {
                    "apiVersion": thing["apiVersion"],
                    "kind": thing["kind"],
                    "name": key_of(thing)[1],
                    "uid": thing["metadata"].get("uid", ""),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }
