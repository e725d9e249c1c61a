"""Who of several candidates leads: a Lease object that one of them keeps renewing.

The protocol is client-go's (tools/leaderelection). Clocks of two machines are never compared: a candidate
counts, on its own monotonic clock, since when the lease has not changed. A leader believes in itself for
less than its lease lasts, counted from before it asked for it; so it stops before another may start.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

from libs.errors import ConflictError, MeshError, NotFoundError, UnavailableError

from . import Cluster, Object
from .kinds import LEASE

_log = logging.getLogger(__name__)


class NotLeadingError(UnavailableError):
    """We do not lead, or cannot be sure of it: whatever was to be written is left to the leader."""

    reason = "NOT_LEADING"


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds: how long a lease binds the others, how long its holder trusts in it, how often it tries."""

    duration: int = 15
    trust: float = 10.0
    period: float = 2.0


class Election:
    """A candidate. `identity` is of this process alone: two that share one would both lead."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        terms: Terms = Terms(),  # it is frozen
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._clock = clock
        self._sleep = sleep
        self._lease: Object | None = None  # as we last saw it
        self._seen: Object = {}  # its spec, and since when it is so, by our clock
        self._seen_at = float("-inf")
        self._trusted_until = float("-inf")

    @property
    def leading(self) -> bool:
        """Whether we lead, for certain, at this moment; a process that was frozen finds out here."""
        return self._clock() < self._trusted_until

    def check(self) -> None:
        """To be called before each write. NotLeadingError in doubt."""
        if not self.leading:
            raise NotLeadingError(f"{self._identity} does not hold the lease {self._name}")

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Campaigns, and runs `lead` while we lead; it is cancelled, and has ended, before another leads if
        it ends within `duration - trust`. Goes on for ever unless `lead` returns. The lease is released on
        the way out, so that another takes it within a period."""
        done = False
        while not done:
            while not await self._try():
                await self._pause()
            _log.info("%s leads by the lease %s", self._identity, self._name)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._renew, group.cancel_scope)
                    await lead()
                    done = True
                    group.cancel_scope.cancel()
            finally:
                await self._release()
            _log.info("%s leads no more by the lease %s", self._identity, self._name)

    async def _renew(self, leading: anyio.CancelScope) -> None:
        while True:
            with anyio.move_on_after(self._trusted_until - self._clock()):
                await self._pause()
                await self._try()
            if not self.leading:
                leading.cancel()
                return

    async def _pause(self) -> None:
        await self._sleep(self._terms.period * random.uniform(0.8, 1.2))

    async def _try(self) -> bool:
        """Takes or renews the lease if it may be ours; whether it is."""
        try:
            with anyio.fail_after(self._terms.trust / 2):
                if self._holder() != self._identity:
                    await self._look()
                if not self._free():
                    self._trusted_until = float("-inf")
                    return False
                await self._write(self._identity, self._terms.duration)
        except (ConflictError, NotFoundError):  # somebody was faster, or our last write went well unheard
            self._lease = None
            return False
        except MeshError as error:
            _log.warning("lease %s: %s", self._name, error, extra={"reason": error.reason})
            return False
        except TimeoutError:
            _log.warning("lease %s: no answer", self._name)
            return False
        return True

    async def _release(self) -> None:
        self._trusted_until = float("-inf")
        if self._holder() != self._identity:
            return
        with anyio.move_on_after(self._terms.trust / 2, shield=True):
            try:
                await self._write("", 1)
            except MeshError as error:  # then it runs out by itself
                _log.warning("release of lease %s: %s", self._name, error, extra={"reason": error.reason})

    def _holder(self) -> str:
        return str(self._lease["spec"].get("holderIdentity") or "") if self._lease else ""

    def _free(self) -> bool:
        if self._lease is None or self._holder() in ("", self._identity):
            return True
        duration = self._lease["spec"].get("leaseDurationSeconds", self._terms.duration)
        return self._clock() >= self._seen_at + float(duration)

    async def _look(self) -> None:
        try:
            self._see(await self._cluster.get(LEASE, self._namespace, self._name))
        except NotFoundError:
            self._lease = None

    def _see(self, lease: Object) -> None:
        self._lease = lease
        if lease["spec"] != self._seen:
            self._seen, self._seen_at = lease["spec"], self._clock()

    async def _write(self, holder: str, duration: int) -> None:
        asked = self._clock()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; we compare it to nothing
        spec: Object = {"acquireTime": now, "leaseTransitions": 0}
        if self._lease is not None:
            spec |= self._lease["spec"]
        if holder not in ("", self._holder()):
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (self._lease is not None)
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": now}
        if self._lease is None:
            metadata = {"namespace": self._namespace, "name": self._name}
            new = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
            self._see(await self._cluster.create(new))
        else:
            self._see(await self._cluster.replace({**self._lease, "spec": spec}))
        if holder:
            self._trusted_until = asked + self._terms.trust
