from __future__ import annotations

from ipaddress import ip_address

import pytest

from ..guard import Guard, GuardError, Policy

pytestmark = pytest.mark.anyio

PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]
PRIVATE = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "fd12::1", "100.64.0.1", "::ffff:10.0.0.1"]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
NEVER = [
    "169.254.169.254", "169.254.1.1", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16",
    "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "240.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("loopback", [False, True])
def test_only_what_the_policy_says_is_allowed_beside_public_addresses(private: bool, loopback: bool) -> None:
    policy = Policy(private=private, loopback=loopback)
    allowed = {each for each in PUBLIC + PRIVATE + LOOPBACK + NEVER if policy.allows(ip_address(each))}
    assert allowed == {*PUBLIC, *(PRIVATE if private else ()), *(LOOPBACK if loopback else ())}


async def test_one_bad_address_of_a_name_is_enough() -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return [PUBLIC[0], "169.254.169.254"]

    with pytest.raises(GuardError, match="not allowed"):
        await Guard(Policy(private=True), resolve).resolve("tools.test", 443)


async def test_other_spellings_of_an_address_are_resolved_and_judged() -> None:
    guard = Guard(Policy())
    for host in ("2130706433", "0x7f.1", "localhost"):
        with pytest.raises((GuardError, OSError)):
            await guard.resolve(host, 80)
