"""How a process gets its certificate: by its token, from IdentityService, again before each one ends.

The key is made in the process's own folder and never leaves it; a restart uses it again, since a token serves
one key only. Whom to trust comes from the published bundle, and from nobody else at the start.
"""

from __future__ import annotations

from .asking import Certificate, Claim, ask
from .enrolment import RefusedError, enrolled
from .settings import Credentials

__all__ = ["Certificate", "Claim", "Credentials", "RefusedError", "ask", "enrolled"]
