"""What the API server refuses in an object's metadata: names, labels, annotations, owners, finalizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from libs.cluster import Object
from libs.cluster.kinds import CRON_JOB, NAMESPACE, SERVICE, Kind

MOST_HOLDERS = 64
"""Owners, and finalizers, that an object may have. The API server has no such bound."""
_ANNOTATION_BYTES = 256 * 2**10  # TotalAnnotationSizeLimitB of the API server
_SHOWN = 100
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST = {NAMESPACE: 63, SERVICE: 63, CRON_JOB: 52}  # a CronJob's name gets 11 more characters in its Jobs
_FLAGS = ("controller", "blockOwnerDeletion")

Findings = Iterator[tuple[str, str]]


def check(kind: Kind, metadata: Object) -> Findings:
    """All that is wrong, as (where, what)."""
    name, longest = metadata["name"], _LONGEST.get(kind, 253)
    pattern = _DNS_LABEL if kind in (NAMESPACE, SERVICE) else _DNS_NAME
    if not isinstance(name, str) or len(name) > longest or not pattern.fullmatch(name):
        yield (
            "metadata.name",
            f"must be lower case letters, digits, '-'{'' if pattern is _DNS_LABEL else ', and dots'},"
            f" begin and end with a letter or digit, and have at most {longest} characters: {shown(name)!r}",
        )
    for part in ("labels", "annotations"):
        yield from _pairs(part, metadata.get(part, {}))
    yield from _owners(metadata.get("ownerReferences", []))
    yield from _finalizers(metadata.get("finalizers", []))


def is_label(name: Any) -> bool:
    """Whether it is a DNS label."""
    return isinstance(name, str) and len(name) <= 63 and bool(_DNS_LABEL.fullmatch(name))


def shown(value: Any) -> str:
    """A value that somebody sent, short enough for a message."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _pairs(part: str, pairs: Object) -> Findings:
    for key, value in pairs.items():
        if not _is_qualified(key):
            yield f"metadata.{part}", f"no valid key: {shown(key)!r}"
        where = f"metadata.{part}[{shown(key)}]"
        if not isinstance(value, str):
            yield where, "must be a string"
        elif part == "labels" and value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            yield (
                where,
                "must have at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter"
                f" or digit: {shown(value)!r}",
            )
    if part == "annotations" and sum(len(key) + len(str(value)) for key, value in pairs.items()) > (
        _ANNOTATION_BYTES
    ):
        yield "metadata.annotations", f"Too long: may not be more than {_ANNOTATION_BYTES} bytes"


def _is_qualified(key: str) -> bool:
    prefix, slash, rest = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_NAME.fullmatch(prefix)):
        return False
    return len(rest) <= 63 and bool(_QUALIFIED.fullmatch(rest))


def _owners(owners: list[Any]) -> Findings:
    where = "metadata.ownerReferences"
    if len(owners) > MOST_HOLDERS:
        yield where, f"Too many: {len(owners)}: must have at most {MOST_HOLDERS} items"
        return
    if sum(isinstance(owner, dict) and owner.get("controller") is True for owner in owners) > 1:
        yield where, "only one reference can have controller set to true"
    for index, owner in enumerate(owners):
        if not isinstance(owner, dict):
            yield f"{where}[{index}]", "must be an object"
            continue
        for key in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(value := owner.get(key, ""), str):
                yield f"{where}[{index}].{key}", "must be a string"
            elif not value:
                yield f"{where}[{index}].{key}", "must not be empty"
        for key in _FLAGS:
            if not isinstance(owner.get(key, False), bool):
                yield f"{where}[{index}].{key}", "must be true or false"


def _finalizers(finalizers: list[Any]) -> Findings:
    where = "metadata.finalizers"
    if len(finalizers) > MOST_HOLDERS:
        yield where, f"Too many: {len(finalizers)}: must have at most {MOST_HOLDERS} items"
        return
    for index, name in enumerate(finalizers):
        if not isinstance(name, str):
            yield f"{where}[{index}]", "must be a string"
        elif not _is_qualified(name):
            yield f"{where}[{index}]", f"no valid name: {shown(name)!r}"
