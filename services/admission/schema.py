"""What the CRDs say of an object, where no API server says it."""

from __future__ import annotations

from libs.cluster import Object
from libs.cluster.local.schema import Validator
from libs.errors import InvalidError
from libs.findings import refusals

from . import reading
from .verdict import Finding

RULE = "schema"
_MEND = "write it as `kubectl explain` says"


def check(thing: Object, old: Object | None = None) -> tuple[Finding, ...]:
    """What schema and CEL rules of its CRD have against it, for `Facts.schema`; nothing for other kinds.
    Numbers without a fraction have to be int. It needs a namespace."""
    if not reading.is_readable(thing):
        return (Finding(RULE, "object", "", "is none, too deep, or no Unicode", _MEND),)
    if reading.kind_of(thing) is None:
        return ()
    prefix = reading.text(thing, "generateName")
    name = reading.text(thing, "name") or (f"{prefix}xxxxx" if prefix else "")
    for field, value in (("name", name), ("namespace", reading.text(thing, "namespace"))):
        if not value:
            return (Finding(RULE, f"metadata.{field}", "", "Required value", _MEND),)
    named = {**thing, "metadata": {**reading.metadata(thing), "name": name}}
    try:
        Validator().validated(named, old if reading.is_readable(old) else None)
    except InvalidError as error:
        return tuple(
            Finding(RULE, each.field, each.value, each.message, each.mend) for each in refusals(error)
        )
    return ()
