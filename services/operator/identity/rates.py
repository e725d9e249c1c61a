"""How many requests are looked at: token buckets, one for all and one for each peer address."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from libs.errors import ExhaustedError

_PEERS = 4096  # remembered; who is forgotten begins with a full bucket


@dataclass(frozen=True)
class Rate:
    """So many a second, and so many at once after a pause."""

    per_second: float
    burst: float


class Rates:
    """Lets requests through at the two rates. A request that is refused costs neither bucket anything."""

    def __init__(self, everybody: Rate, peer: Rate, clock: Callable[[], float]) -> None:
        self._everybody = everybody
        self._peer = peer
        self._clock = clock
        self._all = (everybody.burst, clock())
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> None:
        """Counts a request from this address. ExhaustedError if it comes too soon."""
        now = self._clock()
        mine = _left(self._peer, self._peers.get(address, (self._peer.burst, now)), now)
        ours = _left(self._everybody, self._all, now)
        if mine < 1 or ours < 1:
            whose = "this address" if mine < 1 else "all callers"
            raise ExhaustedError(f"too many requests from {whose}, try again later")
        self._all = (ours - 1, now)
        self._peers[address] = (mine - 1, now)
        self._peers.move_to_end(address)
        if len(self._peers) > _PEERS:
            self._peers.popitem(last=False)


def _left(rate: Rate, state: tuple[float, float], now: float) -> float:
    left, since = state
    return min(rate.burst, left + (now - since) * rate.per_second)
