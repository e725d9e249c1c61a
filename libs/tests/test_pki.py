"""Authorities, what they certify, and whom we believe."""

from __future__ import annotations

import shutil
import stat
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from libs.errors import UnauthenticatedError
from libs.identity import Principal, TrustClass
from libs.pki import Authority, Trust, expiry, own
from libs.testing import ca

AGENT = "/ns/a/agent/b/pod/b-0/0f"
EVERYBODY = ["/cp/gateway", AGENT, "/ns/a/producer/b", "/ns/a/user/b", "/user/b"]
DNS = x509.SubjectAlternativeName


@pytest.fixture(scope="session")
def authority():
    return ca.authority()


@pytest.fixture
def issue(authority, tmp_path):
    return lambda spiffe_id, **options: ca.identity(authority, tmp_path, spiffe_id, **options)


def leaf_of(identity):
    return x509.load_pem_x509_certificates(identity.certificate.read_bytes())[0]


def der_of(identity):
    return leaf_of(identity).public_bytes(Encoding.DER)


def request(key=None):
    key = key or ec.generate_private_key(ec.SECP256R1())
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    asked = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    builder = x509.CertificateSigningRequestBuilder(asked)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    names = DNS([x509.UniformResourceIdentifier("spiffe://mesh.test/user/root")])
    return builder.add_extension(names, critical=False).sign(key, algorithm).public_bytes(Encoding.PEM)


def forge(authority, signer, names, *, ca=False, usages=(ExtendedKeyUsageOID.CLIENT_AUTH,)):
    """A leaf such as `Authority` never makes, signed by a real intermediate all the same."""
    issuer, key = authority.intermediates[signer]
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(
            issuer.subject, x509.Name([]), ec.generate_private_key(ec.SECP256R1()).public_key()
        )
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if names is not None:
        builder = builder.add_extension(DNS(names), critical=False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def uris(*paths):
    return [x509.UniformResourceIdentifier(f"spiffe://mesh.test{path}") for path in paths]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# The authority


def test_keys_are_their_owners_alone(tmp_path):
    Authority.create(tmp_path / "pki", "mesh.test")
    assert mode(tmp_path / "pki") == 0o700
    keys = {file.name: mode(file) for file in (tmp_path / "pki").glob("*.key")}
    assert keys == dict.fromkeys(["root.key", "control-plane.key", "workloads.key", "users.key"], 0o600)
    assert [file.name for file in tmp_path.iterdir()] == ["pki"]


def test_create_never_overwrites(tmp_path):
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(FileExistsError):
        Authority.create(tmp_path, "mesh.test")
    assert [file.name for file in tmp_path.iterdir()] == ["keep"]


@pytest.mark.parametrize("domain", ["", "Mesh.test", "mesh/test", "mesh.test:1", "-mesh"])
def test_create_refuses_what_is_no_domain(tmp_path, domain):
    with pytest.raises(ValueError, match="not a principal"):
        Authority.create(tmp_path / "pki", domain)
    assert not (tmp_path / "pki").exists()


@pytest.mark.parametrize(
    ("domain", "why"), [("a..b", "not a DNS name"), ("a" * 60 + "." + "b" * 19, "79 are possible")]
)
def test_create_refuses_domains_in_which_somebody_has_no_dns_name(tmp_path, domain, why):
    with pytest.raises(ValueError, match=why):
        Authority.create(tmp_path / "pki", domain)
    assert not (tmp_path / "pki").exists()


def test_load_needs_no_root_key(tmp_path):
    created = Authority.create(tmp_path / "pki", "mesh.test")
    (tmp_path / "pki" / "root.key").unlink()
    loaded = Authority.load(tmp_path / "pki")
    assert (loaded.domain, loaded.root) == ("mesh.test", created.root)
    assert loaded.issue("spiffe://mesh.test/cp/gateway", tmp_path / "tls").certificate.exists()


def test_load_refuses_another_key(tmp_path):
    Authority.create(tmp_path / "pki", "mesh.test")
    shutil.copy(tmp_path / "pki" / "users.key", tmp_path / "pki" / "workloads.key")
    with pytest.raises(ValueError, match="not the key of its certificate"):
        Authority.load(tmp_path / "pki")


# What it certifies


@pytest.mark.parametrize("spiffe_id", EVERYBODY)
def test_a_leaf_has_one_uri_and_can_be_a_server_only_where_it_should(issue, spiffe_id):
    leaf = leaf_of(issue(spiffe_id))
    names = leaf.extensions.get_extension_for_class(DNS).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"spiffe://mesh.test{spiffe_id}"]
    hosts = names.get_values_for_type(x509.DNSName)
    servers = {"/cp/gateway": ["gateway.cp.mesh.test"], AGENT: ["0f.b.agent.a.ns.mesh.test"]}
    assert hosts == servers.get(spiffe_id, [])
    usages = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    server = {ExtendedKeyUsageOID.SERVER_AUTH} if spiffe_id in servers else set()
    assert usages == {ExtendedKeyUsageOID.CLIENT_AUTH} | server
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def test_files_are_a_pair_and_only_the_key_is_private(issue):
    identity = issue("/cp/gateway", dns_names=["gateway.agents.svc", "gateway.cp.mesh.test"])
    key = load_pem_private_key(identity.key.read_bytes(), None)
    assert key.public_key() == leaf_of(identity).public_key()
    assert mode(identity.key) == 0o600
    names = leaf_of(identity).extensions.get_extension_for_class(DNS).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway.cp.mesh.test", "gateway.agents.svc"]
    assert sorted(file.name for file in identity.folder.iterdir()) == [
        "ca.crt",
        "control-plane.crt",
        "tls.crt",
        "tls.key",
        "users.crt",
        "workloads.crt",
    ]


def test_issue_again_replaces_key_and_certificate(authority, issue):
    identity = issue("/cp/gateway")
    before = identity.key.read_bytes(), identity.certificate.read_bytes()
    authority.issue("spiffe://mesh.test/cp/gateway", identity.folder)
    assert (
        load_pem_private_key(identity.key.read_bytes(), None).public_key() == leaf_of(identity).public_key()
    )
    assert identity.key.read_bytes() != before[0]
    assert identity.certificate.read_bytes() != before[1]


def test_a_lifetime_is_kept_or_refused_when_longer_than_the_intermediates(authority, issue):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    short = leaf_of(issue("/user/b", now=now, lifetime=timedelta(hours=1)))
    assert short.not_valid_before_utc == now - timedelta(minutes=1)
    assert short.not_valid_after_utc == now + timedelta(hours=1)
    end = authority.intermediates[TrustClass.USERS][0].not_valid_after_utc
    longest = issue("/user/b", now=end - timedelta(hours=30), lifetime=timedelta(hours=30))
    assert expiry(longest) == end
    with pytest.raises(ValueError, match=r"lifetime of 31h is too long: the users .*the longest is 30h"):
        issue("/user/b", now=end - timedelta(hours=30), lifetime=timedelta(hours=31))


def test_own_is_who_the_certificate_says(issue):
    assert own(issue(AGENT)) == Principal.parse(f"spiffe://mesh.test{AGENT}")


def test_of_a_request_only_the_key_counts(authority):
    key = ec.generate_private_key(ec.SECP256R1())
    chain = authority.sign(request(key), f"spiffe://mesh.test{AGENT}")
    leaf, issuer = x509.load_pem_x509_certificates(chain)
    assert leaf.public_key() == key.public_key()
    assert issuer == authority.intermediates[TrustClass.WORKLOADS][0]
    assert "root" not in leaf.subject.rfc4514_string()
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = leaf.extensions.get_extension_for_class(DNS).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"spiffe://mesh.test{AGENT}"]


def test_a_request_must_prove_an_ec_key(authority):
    with pytest.raises(ValueError, match="only EC keys"):
        authority.sign(request(ed25519.Ed25519PrivateKey.generate()), "spiffe://mesh.test/user/b")
    der = bytearray(x509.load_pem_x509_csr(request()).public_bytes(Encoding.DER))
    der[der.index(b"root")] ^= 1  # inside what is signed
    tampered = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    with pytest.raises(ValueError, match="not signed by its own key"):
        authority.sign(tampered, "spiffe://mesh.test/user/b")
    with pytest.raises(ValueError, match="PEM"):
        authority.sign(b"nonsense", "spiffe://mesh.test/user/b")


def test_ids_of_elsewhere_and_names_for_users_are_refused(issue):
    with pytest.raises(ValueError, match="not of the trust domain"):
        issue("spiffe://else.test/cp/gateway")
    with pytest.raises(ValueError, match="not a principal"):
        issue("spiffe://mesh.test/nobody")
    for path in (AGENT, "/user/b"):
        with pytest.raises(ValueError, match="no further DNS names"):
            issue(path, dns_names=["b.example"])


def test_an_agent_without_a_dns_name_gets_no_certificate(issue):
    with pytest.raises(ValueError, match="not a DNS name"):
        issue("/ns/a/agent/B/pod/b-0/0f")


# What others make of it


@pytest.mark.parametrize("spiffe_id", EVERYBODY)
def test_chains_verify_with_openssl(issue, spiffe_id):
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl here")
    identity = issue(spiffe_id)
    command = [
        openssl,
        "verify",
        "-x509_strict",
        "-CAfile",
        identity.root,
        "-untrusted",
        identity.certificate,
    ]
    for purpose, fine in [("sslclient", True), ("sslserver", spiffe_id in ("/cp/gateway", AGENT))]:
        done = subprocess.run([*command, "-purpose", purpose, identity.certificate], capture_output=True)
        assert (done.returncode == 0) is fine, done.stderr


@pytest.mark.parametrize(
    ("signer", "name"),
    [
        (TrustClass.WORKLOADS, "/cp/coordination"),
        (TrustClass.USERS, "/cp/coordination"),
        (TrustClass.USERS, AGENT),
    ],
)
def test_nobody_vouches_for_a_server_of_another_class(authority, tmp_path, signer, name):
    real = authority.intermediates
    own_class = Principal.parse(f"spiffe://mesh.test{name}").trust_class
    forger = replace(authority, intermediates={**real, own_class: real[signer]})
    forged = ca.identity(forger, tmp_path, name)
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl here")
    certificate = str(forged.certificate)
    command = [openssl, "verify", "-CAfile", str(forged.root), "-untrusted", certificate, certificate]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "excluded subtree violation" in done.stderr


# Whom we believe


@pytest.fixture
def trust(issue):
    return Trust(issue("/cp/coordination"))


@pytest.mark.parametrize("spiffe_id", EVERYBODY)
def test_a_certificate_of_ours_is_believed(issue, trust, spiffe_id):
    identity = issue(spiffe_id)
    peer = trust.verify(der_of(identity), time.time())
    assert peer.principal == own(identity)
    assert peer.not_after == expiry(identity).timestamp()
    assert peer.serial == leaf_of(identity).serial_number


def refusal(trust, der, now=None):
    with pytest.raises(UnauthenticatedError) as refused:
        trust.verify(der, time.time() if now is None else now)
    return str(refused.value)


@pytest.mark.parametrize("claimed", EVERYBODY)
@pytest.mark.parametrize("signer", TrustClass)
def test_a_class_is_believed_only_from_its_own_intermediate(authority, trust, claimed, signer):
    der = forge(authority, signer, uris(claimed))
    if Principal.parse(f"spiffe://mesh.test{claimed}").trust_class is signer:
        assert trust.verify(der, time.time()).principal.id.endswith(claimed)
    else:
        assert "is not signed by the" in refusal(trust, der)


def test_another_authority_of_the_same_name_is_not_believed(tmp_path, trust):
    other = Authority.create(tmp_path / "other", "mesh.test")
    assert "is not signed by the" in refusal(trust, der_of(ca.identity(other, tmp_path, "/user/b")))


def test_another_domain_is_not_believed(authority, trust):
    names = [x509.UniformResourceIdentifier("spiffe://else.test/user/b")]
    assert "not of the trust domain" in refusal(trust, forge(authority, TrustClass.USERS, names))


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (None, "no URI SAN"),
        ([x509.DNSName("gateway.cp.mesh.test")], "0 URI SANs"),
        (uris("/user/b", "/user/c"), "2 URI SANs"),
        (uris("/somewhere"), "not a principal"),
    ],
)
def test_a_leaf_needs_exactly_one_id(authority, trust, names, why):
    assert why in refusal(trust, forge(authority, TrustClass.USERS, names))


def test_authorities_and_certificates_not_for_clients_are_nobody(authority, trust):
    names = uris("/user/b")
    assert "one of an authority" in refusal(trust, forge(authority, TrustClass.USERS, names, ca=True))
    for usages in [(), (ExtendedKeyUsageOID.SERVER_AUTH,)]:
        assert "not for clients" in refusal(trust, forge(authority, TrustClass.USERS, names, usages=usages))
    intermediate = authority.intermediates[TrustClass.USERS][0].public_bytes(Encoding.DER)
    assert "not a principal" in refusal(trust, intermediate)


@pytest.mark.parametrize("der", [b"", b"nonsense", b"\x30\x80"])
def test_nonsense_is_nobody(trust, der):
    assert "unusable certificate" in refusal(trust, der)


def test_a_cut_certificate_is_nobody(issue, trust):
    whole = der_of(issue("/user/b"))
    for length in range(0, len(whole), 7):
        refusal(trust, whole[:length])


def test_time_is_checked_each_time(issue, trust):
    identity = issue("/user/b", lifetime=timedelta(hours=1))
    der, start, end = der_of(identity), leaf_of(identity).not_valid_before_utc, expiry(identity)
    assert "not valid yet" in refusal(trust, der, start.timestamp() - 1)
    trust.verify(der, start.timestamp())
    trust.verify(der, end.timestamp())
    assert "expired" in refusal(trust, der, end.timestamp() + 1)


def test_a_new_pin_counts_within_a_second_and_old_peers_are_forgotten(authority, tmp_path, issue):
    ours = issue("/cp/coordination")
    trust = Trust(ours)
    other = Authority.create(tmp_path / "other", "mesh.test")
    old, new = der_of(issue("/user/b")), der_of(ca.identity(other, tmp_path, "/user/b"))
    now = time.time()
    trust.verify(old, now)
    other.issue("spiffe://mesh.test/cp/coordination", ours.folder)
    assert trust.verify(new, now + 1).principal.id == "spiffe://mesh.test/user/b"
    assert "is not signed by the" in refusal(trust, old, now + 1)


def test_a_pin_file_may_hold_two_while_one_is_replaced(authority, tmp_path, issue):
    ours = issue("/cp/coordination")
    other = Authority.create(tmp_path / "other", "mesh.test")
    with ours.intermediate(TrustClass.USERS).open("ab") as pins:
        pins.write(other.intermediates[TrustClass.USERS][0].public_bytes(Encoding.PEM))
    trust = Trust(ours)
    for each in (authority, other):
        trust.verify(der_of(ca.identity(each, tmp_path, "/user/b")), time.time())


def test_pins_that_cannot_be_read_leave_the_old_ones(issue, caplog):
    ours, user = issue("/cp/coordination"), issue("/user/b")
    trust = Trust(ours)
    now = time.time()
    ours.intermediate(TrustClass.USERS).write_text("half a fi")
    trust.verify(der_of(user), now)
    ours.intermediate(TrustClass.USERS).unlink()
    trust.verify(der_of(user), now + 1)
    assert caplog.text.count("cannot read the pinned intermediates") == 2


def test_trust_does_not_start_without_pins(issue):
    ours = issue("/cp/coordination")
    ours.intermediate(TrustClass.USERS).unlink()
    with pytest.raises(FileNotFoundError):
        Trust(ours)


def test_the_chain_verifies_by_the_library_too(authority, issue):
    identity = issue("/cp/gateway")
    leaf, intermediate = x509.load_pem_x509_certificates(identity.certificate.read_bytes())
    verifier = (
        PolicyBuilder()
        .store(Store([authority.root]))
        .build_server_verifier(x509.DNSName("gateway.cp.mesh.test"))
    )
    assert verifier.verify(leaf, [intermediate]) == [leaf, intermediate, authority.root]
