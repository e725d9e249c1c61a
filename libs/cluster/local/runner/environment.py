"""A container's words and environment variables, as its declaration and the objects that it names make them.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from libs.cluster import Object
from libs.errors import InvalidError

from .inputs import Inputs

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
MOST_TEXT = 2**20
"""Characters that the values of a container's variables have together, at most; its words, too."""
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def expanded(text: str, variables: Mapping[str, str], room: int = MOST_TEXT) -> str:
    """`text` with each $(NAME) that is known replaced; $$ stands for one dollar. InvalidError if that gets
    longer than `room`."""
    left = room

    def put(match: re.Match[str]) -> str:
        nonlocal left
        value = "$" if match[0] == "$$" else variables.get(match[1], match[0])
        left -= len(value)
        _demand(left >= 0)  # before it is put together: variables that name each other grow exponentially
        return value

    result = _REFERENCE.sub(put, text)
    _demand(len(result) <= room)
    return result


def _demand(fits: bool) -> None:
    if not fits:
        raise InvalidError(f"its variables, or its words, have more than {MOST_TEXT} characters")


async def variables_of(container: Object, pod: Object, inputs: Inputs) -> dict[str, str]:
    """The variables that the container declares. MissingError while an object or key that one names is not
    there; InvalidError for a source that there is not here, or if they have more than MOST_TEXT."""
    namespace = pod["metadata"]["namespace"]
    variables: dict[str, str] = {}
    room = MOST_TEXT
    for source in container.get("envFrom", ()):
        field = "configMapRef" if "configMapRef" in source else "secretRef"
        named = source[field]
        data = await (inputs.config_map if field == "configMapRef" else inputs.secret)(
            namespace, named["name"], optional=named.get("optional", False)
        )
        prefix = source.get("prefix", "")
        room -= sum(map(len, data.values()))
        _demand(room >= 0)
        variables |= {prefix + key: os.fsdecode(content) for key, content in data.items()}
    for each in container.get("env", ()):
        value = await _value(each, pod, inputs, variables)
        if value is not None:
            room -= len(value)
            _demand(room >= 0)
            variables[each["name"]] = value
    return variables


async def _value(each: Object, pod: Object, inputs: Inputs, before: Mapping[str, str]) -> str | None:
    source: Object | None = each.get("valueFrom")
    if source is None:
        return expanded(each.get("value", ""), before)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    for name, read in (("configMapKeyRef", inputs.config_map), ("secretKeyRef", inputs.secret)):
        if name in source:
            key, optional = source[name]["key"], source[name].get("optional", False)
            data = await read(pod["metadata"]["namespace"], source[name]["name"], optional=optional, key=key)
            return os.fsdecode(data[key]) if key in data else None
    raise InvalidError(f"{each['name']}: there is no {', '.join(source)} here")


def field_of(pod: Object, path: str) -> str:
    """A field of the pod, as the downward API gives it. InvalidError for one that it does not give."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    if match := _SUBSCRIPT.fullmatch(path):
        return str(metadata.get(match[1], {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(pairs.items()))
    values: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", ""),
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
        "status.hostIP": status.get("hostIP", ""),
    }
    if path not in values:
        raise InvalidError(f"the downward API has no {path}")
    return values[path]


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
