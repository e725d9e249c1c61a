"""What the aggregated API says there is: only subresources.

There is no bare `agents` in this group, so that `kubectl get agents` means those of agentctl.dev.
https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

from __future__ import annotations

from typing import Any

from .verbs import GROUP, STATUS, Kind, Verb

VERSION = "v1alpha1"
GROUP_VERSION = f"{GROUP}/{VERSION}"
STATUS_KIND = "AgentStatus"

_AGGREGATED = "apidiscovery.k8s.io"
_SUBRESOURCES = (*((str(verb), "create") for verb in Verb), (STATUS, "get"))

Json = dict[str, Any]


def api_group() -> Json:
    """Of /apis/<group>."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group()}


def api_group_list() -> Json:
    """Of /apis, for who does not ask for `aggregated`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]}


def api_resource_list() -> Json:
    """Of /apis/<group>/<version>."""
    resources = [
        {
            "name": f"{kind}/{subresource}",
            "singularName": "",
            "namespaced": True,
            **_answered(subresource),
            "verbs": [verb],
        }
        for kind in Kind
        for subresource, verb in _SUBRESOURCES
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": resources,
    }


def aggregated(version: str) -> Json:
    """Of /apis, all of it at once. Resources without a responseKind are parents of subresources, no more."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_AGGREGATED}/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": GROUP, "creationTimestamp": None},
                "versions": [
                    {
                        "version": VERSION,
                        "freshness": "Current",
                        "resources": [
                            {
                                "resource": str(kind),
                                "responseKind": {"group": "", "version": "", "kind": ""},
                                "scope": "Namespaced",
                                "singularResource": "",
                                "verbs": [],
                                "subresources": [
                                    {
                                        "subresource": subresource,
                                        "responseKind": _answered(subresource),
                                        "verbs": [verb],
                                    }
                                    for subresource, verb in _SUBRESOURCES
                                ],
                            }
                            for kind in Kind
                        ],
                    }
                ],
            }
        ],
    }


def negotiated(accept: str) -> str:
    """The version of `aggregated` that an Accept header asks for first; empty if another form comes first."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        asked = dict(part.partition("=")[::2] for part in parameters)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        if "as" not in asked:
            return ""
        is_ours = (asked.get("g"), asked["as"]) == (_AGGREGATED, "APIGroupDiscoveryList")
        if is_ours and asked.get("v") in ("v2", "v2beta1"):
            return asked["v"]
    return ""


def content_type(version: str) -> str:
    """Of `aggregated`; clients take it for something else unless it says exactly this."""
    return f"application/json;g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"


def _group() -> Json:
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def _answered(subresource: str) -> Json:
    if subresource == STATUS:
        return {"group": GROUP, "version": VERSION, "kind": STATUS_KIND}
    return {"group": "", "version": "v1", "kind": "Status"}
