"""What we wrote ourselves, from the answer until the watch tells of it.

Without it a pass that follows a write at once would see the object as it was before and write again; and each
write would cause a pass when its echo comes back by the watch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from libs.cluster import Object

from .key import Key

_TRUST_SECONDS = 30.0


class Writing:
    """The writes of which the watch has not told, by object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[Key, tuple[Object, float]] = {}
        self._underway: dict[Key, list[tuple[int, set[Key]]]] = {}  # what was heard since `begin`
        self._buried: deque[str] = deque(maxlen=256)  # uids of what was deleted last

    def begin(self, key: Key) -> None:
        """A write of this object begins: `keeps` keeps what is heard of it."""
        self._underway[key] = []

    def end(self, key: Key, made: Object | None) -> set[Key]:
        """The answer (None: there was none). Whom that concerns which was kept and is not our own write."""
        heard = self._underway.pop(key)
        # The watch may have been faster than the answer, even with the news that the object is gone.
        if made is not None and made["metadata"]["uid"] not in self._buried:
            self._written[key] = made, self._clock() + _TRUST_SECONDS
        others = [each for revision, each in heard if made is None or revision != _revision(made)]
        return set().union(*others)

    def keeps(self, key: Key, new: Object | None, concerned: set[Key]) -> bool:
        """Whether this news waits for the answer to a write that is under way."""
        if new is None or key not in self._underway:
            return False
        self._underway[key].append((_revision(new), concerned))
        return True

    def newest(self, key: Key, heard: Object | None) -> Object | None:
        """What was heard last, or what we wrote since."""
        if (entry := self._written.get(key)) is None:
            return heard
        written, until = entry
        # Without a limit, what was made and deleted while a watch was broken would stay for ever.
        if self._clock() > until or (heard is not None and _revision(heard) >= _revision(written)):
            del self._written[key]
            return heard
        return written

    def is_echo(self, key: Key, old: Object | None, new: Object | None) -> bool:
        """Whether the watch tells of our own last write; which counts no more once it was overtaken."""
        if new is None:
            assert old is not None
            self._buried.append(old["metadata"]["uid"])
            self._written.pop(key, None)
            return False
        written, _ = self._written.get(key, (None, 0.0))
        if written is None or _revision(new) < _revision(written):
            return False
        del self._written[key]
        return _revision(new) == _revision(written)


def _revision(thing: Object) -> int:
    # Since 1.35 revisions of one kind may be compared as numbers (KEP-5504); etcd's always could be.
    return int(thing["metadata"]["resourceVersion"])
