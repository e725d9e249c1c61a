"""Objects to test with."""

from __future__ import annotations

import anyio

from libs.cluster.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, JOB, POD


class Clock:
    """Unix seconds that pass only when told."""

    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        return self.now


def thing(kind, name, namespace="default", **parts):
    """An object; `owners` are objects, the rest of `parts` its fields, or metadata's."""
    metadata = {"name": name} | ({"namespace": namespace} if kind.namespaced else {})
    for key in ("labels", "annotations", "finalizers", "generateName"):
        if key in parts:
            metadata[key] = parts.pop(key)
    if owners := parts.pop("owners", ()):
        metadata["ownerReferences"] = [reference(owner) for owner in owners]
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata} | parts


def reference(owner, *, blocks=True):
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }


def config_map(name="settings", namespace="default", **parts):
    return thing(CONFIG_MAP, name, namespace, **parts)


def pod(name="worker", namespace="default", **parts):
    return thing(POD, name, namespace, spec={"containers": [{"name": "agent", "image": "agentctl"}]}, **parts)


def agent(name="scribe", namespace="default", **spec):
    return thing(
        AGENT,
        name,
        namespace,
        spec={"mode": "once", "instruction": "write", "model": {"pool": "main"}} | spec,
    )


def template(**labels):
    return {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [{"name": "agent", "image": "agentctl", "env": [{"name": "A", "value": "1"}]}]
        },
    }


def deployment(name="web", **parts):
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template(app=name)}
    return thing(DEPLOYMENT, name, spec=spec, **parts)


def job(name="run", **parts):
    return thing(JOB, name, spec={"template": template()}, **parts)


async def take(changes, count):
    """The next changes of a watch, as (type, name)."""
    with anyio.fail_after(10):
        return [
            (change.type, change.object["metadata"]["name"])
            for change in [await anext(changes) for _ in range(count)]
        ]
