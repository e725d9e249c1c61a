"""Notices that the files of our own certificate have changed, and has them taken over.

It looks at them now and then, since not every file system of a cluster tells of changes, and a node gives out
fewer inotify instances than it holds agents.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable

from libs import pki
from libs.identity import Identity
from libs.mesh import AGENT

_log = logging.getLogger(__name__)

_PACE_SECONDS = 1.0
_AGENTS_PACE_SECONDS = 5.0  # what is published passes two looks, so it counts within 10 s
_EARLY = 0.05  # timers may fire a little before their time; that was this moment then, not the last
_PHASE = random.random()  # of this process, so that not all of a machine wake together


def pace(identity: Identity) -> float:
    """Seconds between two looks, if nobody says how many: agents are many, and mostly idle."""
    is_agent = pki.own(identity).role == AGENT.role
    return _AGENTS_PACE_SECONDS if is_agent else _PACE_SECONDS


async def beat(seconds: float) -> None:
    """Sleeps until the next of the moments that are so far apart. They are the same for all of a process, so
    that it wakes once for all that it has to look after."""
    await asyncio.sleep(until_beat(asyncio.get_running_loop().time(), seconds))


def until_beat(now: float, seconds: float) -> float:
    """How long that is. `now` is on the event loop's clock."""
    left = 1 - (now / seconds + _PHASE) % 1
    return seconds * (left if left > _EARLY else left + 1)


class Files:
    """The state in which our certificate and the root were last seen.

    Whoever renews writes the key before the certificate, so a new certificate means that all is there.
    """

    def __init__(self, identity: Identity) -> None:
        self._certificate = identity.certificate
        self._key = identity.key
        self._paths = (identity.certificate, identity.root)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether they differ from the last time. OSError if one is not there."""
        found = self._look()
        changed = found != self._seen
        self._seen = found
        return changed

    def check(self) -> None:
        """OSError if the certificate and the key are not a pair, or not readable."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)

    def _look(self) -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in self._paths]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]


async def follow(files: Files, seconds: float, take: Callable[[], Awaitable[bool]]) -> None:
    """For ever, at each beat: when the files have changed and are whole, calls `take`, again until it says
    that it has taken them over."""
    stale = False
    while True:
        await beat(seconds)
        try:
            stale = files.changed() or stale
            if stale:
                files.check()
                stale = not await take()
        except (OSError, ValueError) as error:
            _log.warning("cannot read our certificate, trying again: %s", error)
