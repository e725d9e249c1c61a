"""The aggregated API as OpenAPI documents, for kubectl and for whoever makes clients.

An API server merges them with those of all others, so they name no definitions, which could clash.
https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from .discovery import GROUP_VERSION, STATUS_KIND, VERSION
from .verbs import MAX_REASON_BYTES, STATUS, Kind, Until, Verb

PATH = f"apis/{GROUP_VERSION}"

Json = dict[str, Any]
_Operation = Callable[[str, str, Sequence[Json], Json | None], Json]

_RUN = {"run": {"type": "string", "description": "One run, wherever it is; absent: all."}}
_COMMON: Json = {
    "reason": {
        "type": "string",
        "maxLength": MAX_REASON_BYTES,
        "description": "Why, for the audit log and for who waits.",
    },
    "deadline": {"type": "string", "description": "For all pods together, such as 30s; 1s to 1h."},
    "until": {
        "type": "string",
        "enum": list(get_args(Until)),
        "description": "How far each pod must have come before the answer.",
    },
    "pod": {"type": "string", "description": "Only this pod; absent: all."},
}
_OWN: dict[Verb, Json] = {
    Verb.DRAIN: {"grace": {"type": "string", "description": "How long agents may take to finish."}},
    Verb.LAME_DUCK: {"undo": {"type": "boolean", "description": "Be ready again."}},
    Verb.CANCEL: _RUN,
    Verb.PAUSE: _RUN,
    Verb.RESUME: _RUN,
}
_INFO = {"title": "agentctl management", "version": VERSION}
_CODES = {
    "200": "Done, or would be done",
    "207": "Done at some pods; details.causes name the others",
    "400": "Malformed body",
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "No such object, pod or run",
    "409": "No pod runs",
    "422": "What was said makes no sense",
    "429": "Too many requests at once",
    "500": "An error of the apiserver",
    "502": "No pod did it",
    "503": "Unavailable, try again",
    "504": "No pod did it in time",
}


def v2() -> Json:
    """OpenAPI 2.0, as /openapi/v2 serves it."""

    def operation(name: str, description: str, parameters: Sequence[Json], body: Json | None) -> Json:
        flat = [{"type": "string", **each} for each in parameters]
        bodies = [{"name": "body", "in": "body", "schema": body}] if body else []
        return {
            "operationId": name,
            "description": description,
            "consumes": ["application/json"],
            "produces": ["application/json"],
            "parameters": [*flat, *bodies],
            "responses": {
                code: {"description": words, "schema": {"type": "object"}} for code, words in _CODES.items()
            },
        }

    return {"swagger": "2.0", "info": _INFO, "paths": _paths(operation), "definitions": {}}


def v3() -> Json:
    """OpenAPI 3.0 of our one group and version."""

    def operation(name: str, description: str, parameters: Sequence[Json], body: Json | None) -> Json:
        any_object = {"application/json": {"schema": {"type": "object"}}}
        request = {"requestBody": {"content": {"application/json": {"schema": body}}}} if body else {}
        return {
            "operationId": name,
            "description": description,
            "parameters": [{"schema": {"type": "string"}, **each} for each in parameters],
            **request,
            "responses": {
                code: {"description": words, "content": any_object} for code, words in _CODES.items()
            },
        }

    return {"openapi": "3.0.0", "info": _INFO, "paths": _paths(operation), "components": {"schemas": {}}}


def v3_index(etag: str) -> Json:
    """Of /openapi/v3: what there is, each with the hash by which it may be cached for ever."""
    return {"paths": {PATH: {"serverRelativeURL": f"/openapi/v3/{PATH}?hash={etag}"}}}


def encoded(document: Mapping[str, Any]) -> tuple[bytes, str]:
    """Its JSON, and its ETag without quotation marks."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return body, hashlib.sha256(body).hexdigest().upper()


def _paths(operation: _Operation) -> Json:
    paths: Json = {}
    for kind in Kind:
        one = "Agent" if kind is Kind.AGENT else "AgentFleet"
        base = f"/{PATH}/namespaces/{{namespace}}/{kind}/{{name}}"
        for verb in Verb:
            body = {"type": "object", "properties": {**_COMMON, **_OWN[verb]}, "additionalProperties": False}
            name = f"{verb.rpc[0].lower()}{verb.rpc[1:]}Namespaced{one}"
            description = f"Asks the pods that run of an {one} to {verb}."
            queries = [_query("dryRun", "All: asks no agent."), _query("timeout", "Such as 30s.")]
            asked = operation(name, description, [*_NAMES, *queries], body)
            paths[f"{base}/{verb}"] = {"post": asked}
        description = f"What the pods of an {one} are doing, as a {STATUS_KIND}."
        queries = [_query("pod", "Only this pod."), _query("timeout", "Such as 5s.")]
        read = operation(f"readNamespaced{one}Status", description, [*_NAMES, *queries], None)
        paths[f"{base}/{STATUS}"] = {"get": read}
    return paths


def _query(name: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description}


_NAMES = [
    {"name": "namespace", "in": "path", "required": True, "description": "Its namespace."},
    {"name": "name", "in": "path", "required": True, "description": "Its name."},
]
