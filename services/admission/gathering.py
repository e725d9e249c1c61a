"""Looks up what a review has to know. What cannot be looked up is an error, never a yes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from libs.cluster import Access, Bearer, Cluster, Object
from libs.errors import InvalidError, MeshError, NotFoundError, UnavailableError

from .context import Facts, Needs, Policy, Reference
from .verdict import Finding

T = TypeVar("T")

MOST_LOOKUPS = 64
"""Of one review: more than any sane object names."""
_LOOKUP_SECONDS = 1.5
_SHOWN = 3  # of what could not be looked up


class Gatherer:
    """Asks a cluster, always anew: an answer that is out of date would be a wrong verdict."""

    def __init__(
        self, cluster: Cluster, policy: Policy, *, seconds: float = _LOOKUP_SECONDS, at_once: int = 32
    ) -> None:
        """Each lookup has so many seconds; so many run at once, for all reviews together."""
        self._cluster = cluster
        self._policy = policy
        self._seconds = seconds
        self._slots = asyncio.Semaphore(at_once)

    async def gather(
        self, wanted: Needs, author: Bearer, *, within: float, schema: Sequence[Finding] | None = None
    ) -> Facts:
        """The facts, in `within` seconds. InvalidError for an object that names too much; UnavailableError
        says what could not be looked up."""
        count = len(wanted.objects) + len(wanted.accesses)
        if count > MOST_LOOKUPS:
            raise InvalidError(f"it names {count} things to look up; at most {MOST_LOOKUPS} are allowed")
        failures: list[str] = []
        try:
            async with asyncio.timeout(within):
                objects, granted = await asyncio.gather(
                    _all(self._object(wanted.namespace, each, failures) for each in wanted.objects),
                    _all(self._access(author, each, failures) for each in wanted.accesses),
                )
        except TimeoutError:
            raise UnavailableError("what it names could not be looked up in time: try again") from None
        if failures:
            more = f" and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
            raise UnavailableError(f"could not look up {', '.join(failures[:_SHOWN])}{more}: try again")
        return Facts(
            self._policy,
            {each: found for each, found in zip(wanted.objects, objects, strict=True) if found is not None},
            frozenset(each for each, has in zip(wanted.accesses, granted, strict=True) if has),
            schema,
        )

    async def _object(self, namespace: str, which: Reference, failures: list[str]) -> Object | None:
        kind, name = which

        async def look() -> Object | None:
            try:
                return await self._cluster.get(kind, namespace, name)
            except (NotFoundError, InvalidError):  # a name that nothing can have is nobody's
                return None

        return await self._bounded(look, f"{kind.name} {name!r}", failures)

    async def _access(self, author: Bearer, access: Access, failures: list[str]) -> bool:
        what = f"whether the author may {access.verb} {access.resource} {access.name!r}"
        return bool(await self._bounded(lambda: self._cluster.review_access(author, access), what, failures))

    async def _bounded(self, look: Callable[[], Awaitable[T]], what: str, failures: list[str]) -> T | None:
        """The answer; None, and an entry in `failures`, if there is none."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._seconds):
                    return await look()
            except TimeoutError:
                failures.append(f"{what} (no answer in {self._seconds:g} s)")
            except MeshError as error:  # that our own rights are too few, too
                failures.append(f"{what} ({error})")
        return None


async def _all(lookups: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    return await asyncio.gather(*lookups)
