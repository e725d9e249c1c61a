"""A kind that the API server has at times: whoever installs KEDA brings it, whoever removes KEDA takes it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from libs.cluster import Cluster, Object, UnauthorisedError
from libs.cluster.informer import Informer, Subscriber
from libs.cluster.kinds import Kind
from libs.errors import MeshError, NotFoundError

ASKED_SECONDS = 10.0
"""How often the API server is asked whether it has the kind."""
_NOBODY = "agentctl-asks-for-none"
_SOON = 0.1  # of that time, as long as there was no answer at all
_REFUSALS = 6  # in a row, until what was there counts as gone: one is no more than a token that is renewed

_log = logging.getLogger(__name__)


class Presence:
    """What there is of such a kind. `seen` hears of each object, also when they all go with their kind;
    `changed` when the kind comes (and has been listed) or goes."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str,
        labels: str,
        seen: Subscriber,
        changed: Callable[[], None],
        period: float = ASKED_SECONDS,
    ) -> None:
        """`period`: seconds between two questions."""
        self._cluster, self._kind = cluster, kind
        self._namespace, self._labels = namespace, labels
        self._seen = seen
        self._changed = changed
        self._period = period
        self._informer: Informer | None = None
        self._following = anyio.CancelScope()
        self._known = anyio.Event()
        self._refusal = ""
        self._refusals = 0
        self.is_there = False
        """Whether the API server has it, and it has been listed."""

    async def run(self) -> None:
        """Asks, and follows it while it is there, until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                found = await self._ask()
                if found and self._informer is None:
                    self._informer = informer = Informer(
                        self._cluster, self._kind, self._namespace, self._labels
                    )
                    self._following = anyio.CancelScope()
                    group.start_soon(self._follow, informer, self._following)
                elif found is False:
                    self._leave()
                await anyio.sleep(self._period * (1 if self._known.is_set() else _SOON))

    async def known(self) -> None:
        """Until it is known whether the kind is there; if it is, until it has been listed."""
        await self._known.wait()

    def get(self, namespace: str, name: str) -> Object | None:
        """The object as last heard of."""
        return self._informer.get(namespace, name) if self._informer else None

    def items(self) -> list[Object]:
        """All that there are."""
        return self._informer.items() if self._informer else []

    def age_seconds(self) -> float | None:
        """Since the watch's last sign of life; None: there is none to follow."""
        return self._informer.age_seconds() if self._informer and self.is_there else None

    async def _ask(self) -> bool | None:
        """None: there was no answer."""
        refusals, self._refusals = self._refusals, 0
        try:
            await self._cluster.list(self._kind, self._namespace, name=_NOBODY)
        except NotFoundError:
            return False
        except UnauthorisedError as error:  # whether it is there or not, it is nothing that we can use
            if self._refusal != str(error):
                _log.warning("%s: %s", self._kind.resource, error)
            self._refusal, self._refusals = str(error), refusals + 1
            return None if self.is_there and self._refusals < _REFUSALS else False
        except MeshError:
            return None
        return True

    async def _follow(self, informer: Informer, scope: anyio.CancelScope) -> None:
        def seen(old: Object | None, new: Object | None) -> None:
            if informer is self._informer:
                self._seen(old, new)

        informer.subscribe(seen)
        with scope:
            async with anyio.create_task_group() as group:
                group.start_soon(informer.run)
                await informer.synced()
                self.is_there = True
                self._known.set()
                self._changed()

    def _leave(self) -> None:
        self._following.cancel()
        had, was_there = self.items(), self.is_there
        self._informer, self.is_there = None, False
        self._known.set()
        for thing in had:
            self._seen(thing, None)
        if was_there:
            self._changed()
