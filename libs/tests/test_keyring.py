"""Authorities over time: published before they sign, believed until their last leaf has run out."""

from __future__ import annotations

import json
import stat
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from libs.errors import PreconditionError, UnauthenticatedError
from libs.identity import Identity, TrustClass
from libs.pki import Keyring, Terms, Trust, TrustBundle, kept, own_key, renewal, write_bundle

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MARGIN = timedelta(minutes=5)
USERS = TrustClass.USERS
ID = "spiffe://mesh.test/user/someone"


def certificates(text):
    return x509.load_pem_x509_certificates(text.encode())


@pytest.fixture
def ring():
    return Keyring.begin("mesh.test", START)


@pytest.fixture
def believes(tmp_path):
    """Whether a server with this bundle believes a leaf."""

    def believes(bundle: TrustBundle, identity: Identity, when: datetime) -> bool:
        server = Keyring.begin("mesh.test", when).authority(when).issue(ID, tmp_path / "server", now=when)
        write_bundle(server, bundle)
        leaf = x509.load_pem_x509_certificates(identity.certificate.read_bytes())[0]
        try:
            Trust(server).verify(leaf.public_bytes(Encoding.DER), when.timestamp())
        except UnauthenticatedError:
            return False
        return True

    return believes


def signer(ring, when, which=USERS):
    return ring.authority(when).intermediates[which][0].serial_number


def test_a_new_domain_has_one_of_each_and_signs_at_once(ring, tmp_path, believes):
    bundle = ring.bundle(START)
    assert [len(certificates(text)) for text in bundle.files.values()] == [1, 1, 1, 1]
    assert bundle.domain == "mesh.test"
    assert believes(bundle, ring.authority(START).issue(ID, tmp_path / "a", now=START), START)
    with pytest.raises(ValueError, match="not a principal"):
        Keyring.begin("not a domain", START)


def test_an_intermediate_is_published_signs_after_the_overlap_and_leaves_after_the_last_leaf(
    ring, tmp_path, believes
):
    old = signer(ring, START)
    ring = ring.rotated(USERS, START)
    assert len(certificates(ring.bundle(START).pins(USERS))) == 2
    assert len(certificates(ring.bundle(START).pins(TrustClass.WORKLOADS))) == 1
    takes_over = START + 24 * HOUR
    assert signer(ring, takes_over - timedelta(seconds=1)) == old
    last = ring.authority(takes_over - timedelta(seconds=1)).issue(ID, tmp_path / "a", now=takes_over)
    assert signer(ring, takes_over) != old
    ends = takes_over + 24 * HOUR + MARGIN
    assert believes(ring.bundle(takes_over + 23 * HOUR), last, takes_over + 23 * HOUR)
    assert len(certificates(ring.bundle(ends - timedelta(seconds=1)).pins(USERS))) == 2
    assert len(certificates(ring.bundle(ends).pins(USERS))) == 1
    assert not believes(ring.bundle(ends), last, takes_over + 23 * HOUR), "its pin is gone"


def test_a_root_brings_new_intermediates_and_leaves_with_the_last_old_one(ring):
    before = {each: signer(ring, START, each) for each in TrustClass}
    rotated = ring.rotated(None, START, overlap=HOUR)
    assert len(certificates(rotated.bundle(START).root)) == 2
    assert {each: signer(rotated, START, each) for each in TrustClass} == before
    after = rotated.authority(START + HOUR)
    assert not {pair[0].serial_number for pair in after.intermediates.values()} & set(before.values())
    for pair in after.intermediates.values():
        pair[0].verify_directly_issued_by(rotated.roots[-1].certificate)
    ends = START + HOUR + 24 * HOUR + MARGIN
    assert len(certificates(rotated.bundle(ends - timedelta(seconds=1)).root)) == 2
    assert certificates(rotated.bundle(ends).root) == [rotated.roots[-1].certificate]


def test_an_old_root_stays_while_an_intermediate_of_it_is_believed(ring):
    rotated = ring.rotated(None, START, overlap=HOUR)
    kept_one = replace(rotated.intermediates[USERS][0], ends=START + 90 * DAY)
    lines = {**rotated.intermediates, USERS: (kept_one, *rotated.intermediates[USERS][1:])}
    assert len(certificates(replace(rotated, intermediates=lines).bundle(START + 60 * DAY).root)) == 2


def test_no_rotation_begins_while_the_last_one_waits(ring):
    rotated = ring.rotated(USERS, START)
    for which in (USERS, None):
        with pytest.raises(PreconditionError, match="2026-01-02T00:00:00Z"):
            rotated.rotated(which, START + 23 * HOUR)
    assert rotated.rotated(TrustClass.WORKLOADS, START)
    assert rotated.rotated(USERS, START + 24 * HOUR)


def test_a_second_rotation_does_not_prolong_the_first(ring):
    twice = ring.rotated(USERS, START, overlap=HOUR).rotated(USERS, START + 2 * HOUR, overlap=HOUR)
    assert len(certificates(twice.bundle(START + 2 * HOUR).pins(USERS))) == 3
    assert len(certificates(twice.bundle(START + 25 * HOUR + MARGIN).pins(USERS))) == 2


def test_nothing_is_done_before_two_thirds_of_a_life(ring):
    assert ring.upkept(START + 243 * DAY) is ring


def test_intermediates_renew_themselves(ring):
    at = START + 244 * DAY
    renewed = ring.upkept(at)
    assert {len(line) for line in renewed.intermediates.values()} == {2}
    assert len(renewed.roots) == 1
    assert renewed.upkept(at + HOUR) is renewed, "once is enough"
    later = renewed.upkept(at + 3 * DAY)
    assert {len(line) for line in later.intermediates.values()} == {1}, "what is past is dropped"


def test_a_domain_renews_itself_for_ever(ring):
    """Thirty years in steps of a month: somebody who can sign for a day, under a root that is believed."""
    now = START
    for _ in range(365):
        now += 30 * DAY
        ring = ring.upkept(now)
        authority = ring.authority(now)
        roots = certificates(authority.bundle.root)
        for each, (intermediate, _key) in authority.intermediates.items():
            assert intermediate.not_valid_after_utc > now + DAY
            assert intermediate in certificates(authority.bundle.pins(each))
            (root,) = [it for it in roots if _signed(intermediate, it)]
            assert root.not_valid_after_utc >= intermediate.not_valid_after_utc
    assert ring.roots[0].certificate.not_valid_before_utc > START + 2000 * DAY
    assert len(ring.roots) <= 2


def _signed(child, parent):
    try:
        child.verify_directly_issued_by(parent)
    except Exception:  # noqa: BLE001  (whatever is wrong with it)
        return False
    return True


def test_a_keyring_survives_as_text(ring):
    rotated = ring.rotated(USERS, START)
    again = kept.load(kept.dump(rotated))
    assert again.bundle(START) == rotated.bundle(START)
    for when in (START, START + 25 * HOUR, START + 50 * HOUR):
        assert signer(again, when) == signer(rotated, when)
    assert again.rotated(None, START + 25 * HOUR), "with the root's key"


def test_half_a_keyring_is_none(ring):
    document = json.loads(kept.dump(ring))
    other = json.loads(kept.dump(Keyring.begin("mesh.test", START)))
    mixed = [document["users"][0] | {"key": other["users"][0]["key"]}]
    for broken in ("", "{}", json.dumps(document | {"users": []}), json.dumps(document | {"users": mixed})):
        with pytest.raises(ValueError, match=r".+"):
            kept.load(broken)


def test_a_bundle_is_whole_or_none(ring):
    files = dict(ring.bundle(START).files)
    assert TrustBundle.of(files | {"denied": "x"}) == ring.bundle(START)
    with pytest.raises(ValueError, match=r"lacks users\.crt"):
        TrustBundle.of(files | {"users.crt": ""})
    with pytest.raises(ValueError, match=r".+"):
        TrustBundle.of(files | {"ca.crt": "nonsense"})
    other = Keyring.begin("else.test", START).bundle(START)
    with pytest.raises(ValueError, match="several trust domains"):
        TrustBundle.of(files | {"ca.crt": files["ca.crt"] + other.root})


def test_a_certificate_is_due_after_two_thirds_or_when_nobody_vouches_for_it(ring, tmp_path):
    identity = ring.authority(START).issue(ID, tmp_path / "a", lifetime=3 * HOUR, now=START)
    due = renewal(identity, ring.bundle(START))
    assert abs(due - (START + 2 * HOUR).timestamp()) < 60
    assert renewal(identity, Keyring.begin("mesh.test", START).bundle(START)) == 0
    identity.key.unlink()
    own_key(identity.key)
    assert renewal(identity, ring.bundle(START)) == 0, "it is another key's"
    assert renewal(Identity(tmp_path / "nowhere"), ring.bundle(START)) == 0


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "tls" / "tls.key"
    first = own_key(path)
    assert own_key(path).private_numbers() == first.private_numbers()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("nonsense")
    with pytest.raises(ValueError, match=r".+"):
        own_key(path)


def test_terms_may_be_short(tmp_path, believes):
    now = datetime.fromtimestamp(time.time(), UTC)
    ring = Keyring.begin("mesh.test", now, Terms(intermediate=3 * HOUR, leaf=HOUR, overlap=HOUR))
    assert ring.upkept(now + 2 * HOUR) is not ring
    with pytest.raises(ValueError, match="too long"):
        ring.authority(now).issue(ID, tmp_path / "a", now=now)
