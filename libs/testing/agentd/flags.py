"""The flags by name, and how a value is found: flag before environment before default."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

VERSIONS = ("1.0.0", "1.4.0")

# Parsed so that the message says what is wrong: the program that we stand for has them, we have not.
_ABSENT = {
    "--continue": "warm sessions",
    "--claim": "claim routes",
    "--claim-ttl": "claim routes",
    "--claim-renew-fraction": "claim routes",
    "--assign-from": "standby",
    "--workflow": "workflows",
    "--config": "configuration file",
    "--serve-bearer": "bearer tokens",
    "--health-file": "health file",
    "--a2a-peer": "A2A peers",
    "--cgroup": "cgroups",
    "--cgroup-memory-max": "cgroups",
    "--cgroup-pids-max": "cgroups",
}
_ABSENT_SWITCHES = {
    "--standby": "standby",
    "--watch-config": "configuration file",
    "--config-schema": "configuration file",
}


class UsageError(Exception):
    """A flag or a variable that cannot be: exit code 2."""


@dataclass(frozen=True)
class Reader:
    """Flag before environment; `AGENTD_X` before `AGENT_X`; empty is unset."""

    flags: Mapping[str, Any]
    environ: Mapping[str, str]

    @property
    def is_newer(self) -> bool:
        """Whether bare INTELLIGENCE and AGENT_INSTRUCTION are read: since 1.1.0."""
        return bool(self.flags["standin_version"] != "1.0.0")

    def text(self, flag: str | None, *variables: str) -> str | None:
        """A flag or, without it, the first variable that is there."""
        if flag is not None and self.flags[flag]:
            return str(self.flags[flag])
        for variable in variables:
            branded = variable.replace("AGENT_", "AGENTD_", 1)
            if value := self.environ.get(branded) or self.environ.get(variable):
                return value
        return None

    def secret(self, variable: str, value: str | None, file: str | None) -> str | None:
        """A value, a file of it, a variable, or a variable that names a file. Raises OSError."""
        if found := value or (None if file else self.text(None, variable)):
            return found
        path = file or self.text(None, f"{variable}_FILE")
        return Path(path).read_text().strip() if path else None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def reader(argv: Sequence[str], environ: Mapping[str, str]) -> Reader:
    """Raises UsageError for a flag that is unknown, wrong, or of something that the stand-in has not."""
    flags = vars(_parser().parse_args(argv))
    for flag, what in (_ABSENT | _ABSENT_SWITCHES).items():
        if flags[flag]:
            raise UsageError(f"{flag}: the stand-in has no {what}")
    return Reader(flags, environ)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="agentd",
        description="A stand-in of agentd 1.x for tests; it is not agentd.",
        allow_abbrev=False,
    )
    texts = (
        "instruction instruction-file intelligence intelligence-token intelligence-token-file model mode"
        " tls-ca serve-mcp serve-cert serve-key serve-client-ca metrics-addr shard interval cron run-id"
        " traceparent drain-timeout report-file"
    )
    for name in texts.split():
        parser.add_argument(f"--{name}")
    for name in ("mcp", "mcp-tags", "subscribe"):
        parser.add_argument(f"--{name}", action="append", default=[])
    for name in ("allow-trifecta", "log-content", "capabilities", "version", "validate-config"):
        parser.add_argument(f"--{name}", action="store_true")
    for name, default in (
        ("max-steps", 50),
        ("max-tokens", 200_000),
        ("max-depth", 4),
        ("events-ring", 1024),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--deadline", default="600s")
    parser.add_argument("--budget-exit-code", type=int)
    parser.add_argument("--model-swap", choices=("finish-on-old", "restart-turn"), default="finish-on-old")
    parser.add_argument("--log-level", choices=("debug", "info", "warn", "error"), default="info")
    parser.add_argument("--standin-version", choices=VERSIONS, default="1.0.0")
    parser.add_argument("--standin-stream-close", default="15s")
    for flag in _ABSENT:
        parser.add_argument(flag, dest=flag, action="append")
    for flag in _ABSENT_SWITCHES:
        parser.add_argument(flag, dest=flag, action="store_true")
    return parser
