"""Keeps a certificate folder filled while a process runs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from libs import pki
from libs.errors import DeniedError, InvalidError, MeshError, PreconditionError, UnauthenticatedError
from libs.identity import Identity
from libs.pki import TrustBundle
from libs.rpc.rotation import beat, pace

from .asking import Claim, ask
from .settings import Credentials

_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0
_PATIENCE_SECONDS = 60.0  # a token that is not believed may be one that is just being replaced
_FOR_GOOD = (DeniedError, InvalidError, PreconditionError)


class RefusedError(Exception):
    """We get no certificate, now or later."""


@asynccontextmanager
async def enrolled(
    credentials: Credentials,
    component: str = "",
    *,
    administrator: bool = False,
    folder: str = "",
    clock: Callable[[], float] = time.time,
    check_seconds: float | None = None,
) -> AsyncIterator[Identity]:
    """Our identity, with a certificate in it, kept fresh while the block runs.

    Waits for as long as IdentityService, the token or the published bundle is not there; RefusedError if we
    are refused for good. Later refusals are logged and tried again. Each `check_seconds`, by default at our
    `pace`, it is looked whether another bundle is published or it is time to renew. A process with several
    identities gives each a `folder` below `tls_dir`; they share the key, since they share the token.
    """
    identity = Identity(credentials.tls_dir / folder)
    if not credentials.identity_address:
        yield identity
        return
    enrolment = Enrolment(credentials, component, identity, clock, administrator)
    await enrolment.begin()
    keeper = asyncio.create_task(enrolment.keep(check_seconds or pace(identity)))
    try:
        yield identity
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})


class Enrolment:
    """One identity, from its first certificate on."""

    def __init__(
        self,
        credentials: Credentials,
        component: str,
        identity: Identity,
        clock: Callable[[], float],
        administrator: bool = False,
    ) -> None:
        assert credentials.token_file is not None  # Credentials has checked
        assert credentials.trust_dir is not None
        self._address = credentials.identity_address
        self._token = credentials.token_file
        self._trust = credentials.trust_dir
        self._key = credentials.tls_dir / identity.key.name
        self._component = component
        self._administrator = administrator
        self._identity = identity
        self._clock = clock
        self._seen: list[tuple[int, int, int]] = []
        self._renew_at = 0.0

    async def begin(self) -> None:
        """Returns with a certificate. RefusedError."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        tries = 0
        while True:
            try:
                return await self.check()
            except _FOR_GOOD as error:
                raise RefusedError(f"identity: refused by {self._address}: {error}") from error
            except UnauthenticatedError as error:
                if time.monotonic() > patience:
                    raise RefusedError(f"identity: refused by {self._address}: {error}") from error
                _log.warning("identity: %s; trying again", error)
            except (MeshError, OSError, ValueError) as error:
                _log.warning("identity: no certificate yet: %s; trying again", error)
            await asyncio.sleep(_delay(tries))
            tries += 1

    async def keep(self, check_seconds: float) -> None:
        """Follows the published bundle, and renews in time, for ever."""
        tries = 0
        while True:
            await (asyncio.sleep(_delay(tries - 1)) if tries else beat(check_seconds))
            # As a value, so that nothing ends this: whoever does not renew is soon nobody.
            (outcome,) = await asyncio.gather(self.check(), return_exceptions=True)
            if outcome is None:
                tries = 0
                continue
            tries += 1
            if isinstance(outcome, MeshError | OSError | ValueError):
                _log.warning("identity: cannot renew: %s; trying again", outcome)
            else:
                _log.error("identity: cannot renew; trying again after a bug", exc_info=outcome)

    async def check(self) -> None:
        """Looks at the published bundle, and asks for a certificate if it is time to."""
        self._follow()
        if self._clock() >= self._renew_at:
            await self._certify()

    def _follow(self) -> None:
        """Takes over the published bundle when it has changed. OSError, ValueError."""
        if (seen := _stat(self._trust)) == self._seen:
            return
        bundle = TrustBundle.read(self._trust)
        denied = self._trust / "denied"
        pki.write_denied(self._identity, denied.read_text() if denied.exists() else "")
        pki.write_bundle(self._identity, bundle)
        self._renew_at = min(self._renew_at or float("inf"), pki.renewal(self._identity, bundle))
        self._seen = seen

    async def _certify(self) -> None:
        key = pki.own_key(self._key)
        claim = Claim(
            self._token.read_text().strip(),
            pki.new_request(key),
            component=self._component,
            administrator=self._administrator,
        )
        trusted = TrustBundle.read(self._identity.folder)
        certificate = await ask(self._address, trusted.root, claim)
        key_pem, chain_pem, bundle = self._key.read_bytes(), certificate.chain_pem, certificate.bundle
        if bundle.domain != trusted.domain or not pki.renewal_of(chain_pem, key_pem, bundle):
            raise ValueError("the certificate that came is not for our key, or nobody vouches for it")
        pki.write_identity(self._identity, bundle, key_pem, chain_pem)
        self._renew_at = certificate.renew_at
        _log.info("certified as %s", certificate.spiffe_id)


def _delay(tries: int) -> float:
    """Doubles from try to try, and differs from process to process."""
    return min(_FIRST_DELAY * 2.0 ** min(tries, 16), _LONGEST_DELAY) * random.uniform(0.5, 1.0)


def _stat(folder: Path) -> list[tuple[int, int, int]]:
    """What tells that the files have changed. OSError if the bundle is not there."""
    stats = [path.stat() for path in sorted(folder.iterdir()) if path.is_file()]
    return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
