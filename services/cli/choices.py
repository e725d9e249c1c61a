"""What options may be set to. Apart from the rest, since `--help` needs them and must not load the stubs."""

from __future__ import annotations

from enum import StrEnum


class ResultFormat(StrEnum):
    """How to print results: a line each, in full, or one JSON document a line."""

    TABLE = "table"
    TEXT = "text"
    JSON = "json"


class ObjectFormat(StrEnum):
    """How to print objects."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Dedupe(StrEnum):
    """What makes two submitted files or lines the same."""

    CONTENT = "content"
    NAME = "name"


class State(StrEnum):
    """Where an item stands; names are those of the wire."""

    READY = "ready"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELED = "canceled"
    ALL = "all"


class Cause(StrEnum):
    """Why an item is in the dead letters."""

    ATTEMPTS = "attempts"
    TERMINAL = "terminal"
    EXPIRED = "expired"
    LEASE_EXPIRED = "lease-expired"


class OnExpiry(StrEnum):
    """What becomes of an item whose lease ends unsettled."""

    RETRY = "retry"
    DEAD = "dead"


class OnDeadHead(StrEnum):
    """What becomes of the items behind a dead head of an ordering key."""

    HALT = "halt"
    SKIP = "skip"


class Store(StrEnum):
    """Where the local plane's coordination keeps work."""

    EMBEDDED = "embedded"
    MEMORY = "memory"
    POSTGRES = "postgres"


class Front(StrEnum):
    """Which HTTP/2 server the services stand on."""

    H2CORN = "h2corn"
    GRPCIO = "grpcio"
