"""One certificate authority for a whole test run, and identities by it."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from libs.identity import Identity
from libs.pki import Authority

DOMAIN = "mesh.test"


@cache
def authority() -> Authority:
    """The authority of this process, for `spiffe://mesh.test`; made once."""
    scratch = tempfile.TemporaryDirectory(prefix="agentctl-ca-")
    atexit.register(scratch.cleanup)
    return Authority.create(Path(scratch.name) / "pki", DOMAIN)


def identity(
    authority: Authority,
    tmp: Path,
    spiffe_id: str,
    *,
    lifetime: timedelta = timedelta(hours=24),
    dns_names: Sequence[str] = (),
    now: datetime | None = None,
) -> Identity:
    """A certificate in a folder of its own under `tmp`. `/cp/x` alone is an id of the authority's domain."""
    full_id = spiffe_id if "://" in spiffe_id else f"spiffe://{authority.domain}{spiffe_id}"
    folder = Path(tempfile.mkdtemp(dir=tmp, prefix="identity-"))
    return authority.issue(full_id, folder, lifetime=lifetime, dns_names=dns_names, now=now)
