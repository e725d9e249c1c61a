"""What a process that enrols reads from its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """To be inherited by a service's settings, whose `__post_init__` calls this one."""

    tls_dir: Path = field(metadata={"env": "AGENTCTL_TLS_DIR"})
    """Folder of our certificate and of whom we trust (tls.crt, tls.key, ca.crt, one file a trust class)."""
    identity_address: str = field(default="", metadata={"env": "AGENTCTL_IDENTITY_ADDRESS"})
    """host:port of IdentityService, which then fills the folder; empty: somebody else does."""
    token_file: Path | None = field(default=None, metadata={"env": "AGENTCTL_TOKEN_FILE"})
    """File with our ServiceAccount token, of the audience agentctl-identity; read anew each time."""
    trust_dir: Path | None = field(default=None, metadata={"env": "AGENTCTL_TRUST_DIR"})
    """Folder of the published trust bundle, which may change in place."""

    def __post_init__(self) -> None:
        if self.identity_address and (self.token_file is None or self.trust_dir is None):
            raise ValueError(
                "AGENTCTL_IDENTITY_ADDRESS needs AGENTCTL_TOKEN_FILE and AGENTCTL_TRUST_DIR beside it"
            )
