"""A loopback address for each pod, so that pods can all listen on the same ports.

All of 127.0.0.0/8 is on the loopback device of a Linux; other systems want the addresses added to theirs.
"""

from __future__ import annotations

import hashlib
import ipaddress

from libs.errors import ExhaustedError

_NETWORK = ipaddress.ip_network("127.64.0.0/10")


class Addresses:
    """The addresses of one network, each taken at most once; a uid gets the same one again if it is free."""

    def __init__(self, network: ipaddress.IPv4Network | ipaddress.IPv6Network = _NETWORK) -> None:
        self._first = int(network.network_address) + 1
        self._count = network.num_addresses - 2  # neither the network's own nor its broadcast address
        self._taken: dict[int, str] = {}

    def take(self, uid: str) -> str:
        """An address that nobody has, chosen by the uid. ExhaustedError if there is none."""
        begin = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8]) % self._count
        for step in range(self._count):
            place = (begin + step) % self._count
            if self._taken.setdefault(place, uid) == uid:
                return str(ipaddress.ip_address(self._first + place))
        raise ExhaustedError("every loopback address of pods is taken")

    def free(self, uid: str) -> None:
        """Its address may go to another."""
        self._taken = {place: owner for place, owner in self._taken.items() if owner != uid}
