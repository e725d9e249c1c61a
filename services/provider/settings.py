"""What the stand-in provider reads from its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """PROVIDER_*; see each field."""

    listen: str = "127.0.0.1:7480"
    """host:port to serve on; port 0 picks a free one, which the log then names."""

    tls: bool = False
    """Serves HTTPS with the certificate of AGENTCTL_TLS_DIR, enrolled for where AGENTCTL_IDENTITY_ADDRESS is
    set; otherwise plain HTTP."""

    latency: timedelta = timedelta(0)
    """How long an answer takes, as it would with a model."""

    fail_every: int = 0
    """Every so many-th completion fails with `fail_status`; 0: none."""

    fail_status: int = 503
    """The status of those failures."""

    api_key: str = field(default="", repr=False, metadata={"secret": True})
    """What callers must bring as their bearer token; empty: whatever they bring is fine."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = field(
        default="INFO", metadata={"env": "AGENTCTL_LOG_LEVEL"}
    )
    """Least level that is logged."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\S+:\d{1,5}", self.listen):
            raise ValueError(f"PROVIDER_LISTEN: {self.listen!r} is not host:port")
        if self.fail_every < 0:
            raise ValueError("PROVIDER_FAIL_EVERY: 0 (never) or more")
        if not 400 <= self.fail_status <= 599:
            raise ValueError("PROVIDER_FAIL_STATUS: 400 to 599")
