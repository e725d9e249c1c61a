"""Addresses of pods."""

from __future__ import annotations

import ipaddress

import pytest

from libs.cluster.local.runner.addresses import Addresses
from libs.errors import ExhaustedError


def test_an_address_is_chosen_by_the_uid_and_lies_in_the_network():
    first, again, other = (Addresses().take(uid) for uid in ("a", "a", "b"))
    assert first == again != other
    assert ipaddress.ip_address(first) in ipaddress.ip_network("127.64.0.0/10")


def test_uids_that_would_collide_get_different_addresses_until_none_is_left():
    addresses = Addresses(ipaddress.ip_network("127.64.0.0/29"))
    taken = {addresses.take(str(number)) for number in range(6)}
    assert taken == {f"127.64.0.{last}" for last in range(1, 7)}
    with pytest.raises(ExhaustedError):
        addresses.take("one more")


def test_a_freed_address_is_given_again():
    addresses = Addresses(ipaddress.ip_network("127.64.0.0/30"))
    addresses.take("a")
    second = addresses.take("b")
    addresses.free("b")
    assert addresses.take("c") == second
