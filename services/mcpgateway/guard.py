"""Where connections to servers may go: names are resolved, judged, and connected to at that very address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from libs.errors import DeniedError

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host's addresses. OSError."""

_METADATA = frozenset(
    ip_address(each) for each in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254")
)
_RESOLVING = ThreadPoolExecutor(64, "resolving")
_NAT64 = IPv6Network("64:ff9b::/96")


class GuardError(DeniedError):
    """A server set leads where it must not."""

    reason = "ADDRESS_DENIED"


@dataclass(frozen=True)
class Policy:
    """Which addresses are allowed beside public ones."""

    private: bool = False
    """Those of private networks, as servers in a cluster have."""
    loopback: bool = False
    """Our own host: for the local home, and nowhere else."""

    def allows(self, address: Address) -> bool:
        """Never one that gives out a machine's credentials, nor one that is nobody's or everybody's."""
        real = _unwrapped(address)
        if real.is_loopback:  # ::1 counts as reserved too
            return self.loopback
        if real in _METADATA or real.is_link_local or real.is_multicast:
            return False
        if real.is_unspecified or real.is_reserved:
            return False
        if isinstance(real, IPv6Address) and real.sixtofour is not None:
            return False
        return real.is_global or self.private


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """As the system does it. A name that takes long has a thread to itself meanwhile, not one of all."""
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVING, look)
    return [str(each[4][0]) for each in found]


class Guard(AbstractResolver):
    """Resolves names for connections that are being made."""

    def __init__(self, policy: Policy, resolve: Resolve = system_resolve) -> None:
        self._policy = policy
        self._resolve = resolve

    def check(self, url: str) -> None:
        """GuardError if its host is an address that is not allowed: those are not resolved."""
        host = urlsplit(url).hostname or ""
        try:
            address = ip_address(host)
        except ValueError:
            return
        if not self._policy.allows(address):
            raise GuardError(f"servers at {host} are not allowed")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All of its addresses; GuardError if one of them is not allowed."""
        found = [ip_address(each.partition("%")[0]) for each in await self._resolve(host, port)]
        if not found:
            raise OSError(f"{host} has no address")
        if not all(self._policy.allows(each) for each in found):
            raise GuardError(f"{host} is at an address that is not allowed")
        return [
            ResolveResult(
                hostname=host,
                host=str(each),
                port=port,
                family=socket.AF_INET if each.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for each in found
        ]

    async def close(self) -> None:
        """Nothing is held."""
