"""The cases, a module for each surface of the contract, in the order in which they are run."""

from __future__ import annotations

from ..case import Group
from . import (
    authorisation,
    claims,
    drain,
    events,
    exits,
    health,
    limits,
    loop,
    manifest,
    messages,
    metrics,
    reactive,
    reports,
    status,
    verbs,
    workflow,
)

_MODULES = (
    manifest, status, health, authorisation, verbs, messages, events, metrics,
    exits, reports, limits, drain, loop, reactive, workflow, claims,
)  # fmt: skip

GROUPS: tuple[Group, ...] = tuple(module.GROUP for module in _MODULES)
"""All of them."""
