"""Principals out of SPIFFE ids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.identity import Identity, Kind, Principal, TrustClass


@pytest.mark.parametrize(
    ("path", "kind", "trust_class", "role"),
    [
        ("cp/coordination", Kind.COMPONENT, TrustClass.CONTROL_PLANE, "cp/coordination"),
        ("ns/a/agent/b.c/pod/b-0/0f-1", Kind.AGENT, TrustClass.WORKLOADS, "agent"),
        ("ns/a/producer/b_c", Kind.PRODUCER, TrustClass.USERS, "producer"),
        ("ns/a/user/b", Kind.USER, TrustClass.USERS, "user"),
        ("user/b", Kind.ADMINISTRATOR, TrustClass.USERS, "administrator"),
    ],
)
def test_each_shape_is_a_kind_with_its_class_and_role(path, kind, trust_class, role):
    principal = Principal.parse(f"spiffe://mesh.test/{path}")
    assert (principal.kind, principal.trust_class, principal.role) == (kind, trust_class, role)
    assert principal.domain == "mesh.test"


def test_an_agent_has_all_its_parts():
    principal = Principal.parse("spiffe://mesh.test/ns/team/agent/reader/pod/reader-0/6f1b")
    parts = (principal.namespace, principal.name, principal.pod, principal.uid)
    assert parts == ("team", "reader", "reader-0", "6f1b")


DNS_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")


def test_a_component_is_a_server_by_name():
    assert Principal.parse("spiffe://mesh.test/cp/gateway").dns_name == "gateway.cp.mesh.test"


@pytest.mark.parametrize("path", ["ns/a/user/b", "ns/a/producer/b", "user/b"])
def test_people_are_nobodys_server(path):
    with pytest.raises(ValueError, match="nobody's server"):
        _ = Principal.parse(f"spiffe://mesh.test/{path}").dns_name


def label(most=63):
    return st.from_regex(rf"[a-z0-9]([a-z0-9-]{{0,{most - 2}}}[a-z0-9])?", fullmatch=True)


def dotted(longest):
    return st.lists(label(), min_size=1, max_size=4).map(".".join).filter(lambda text: len(text) <= longest)


@given(label(), dotted(63), st.uuids().map(str), dotted(79))
def test_each_pod_of_an_agent_is_a_server_by_a_name_of_its_own(namespace, name, uid, domain):
    text = f"spiffe://{domain}/ns/{namespace}/agent/{name}/pod/any/{uid}"
    dns_name = Principal.parse(text).dns_name
    assert len(dns_name) <= 253
    assert all(len(each) <= 63 for each in dns_name.split("."))
    # what it was made of can be told from it, so no two pods have the same
    first, rest = dns_name.removesuffix(f".ns.{domain}").split(".", 1)
    assert (first, *rest.rsplit(".", 2)) == (uid, name, "agent", namespace)


ANY = "abzAZ019._-"


@given(
    st.text(ANY, min_size=1, max_size=253), st.text(ANY, min_size=1, max_size=64), st.text(ANY, max_size=200)
)
def test_whoever_can_be_a_principal_has_a_dns_name_or_hears_why_not(name, uid, domain):
    for path in (f"ns/a/agent/{name}/pod/any/{uid}", f"cp/{name}"):
        try:
            principal = Principal.parse(f"spiffe://m{domain}/{path}")
        except ValueError:
            continue
        try:
            dns_name = principal.dns_name
        except ValueError as error:
            assert f"{principal.id} cannot serve: " in str(error)  # noqa: PT017  (both outcomes are fine)
            text = f"{uid}.{name}.agent.a.ns.m{domain}" if principal.namespace else f"{name}.cp.m{domain}"
            assert len(text) > 253 or not DNS_NAME.fullmatch(text)
        else:
            assert len(dns_name) <= 253
            assert DNS_NAME.fullmatch(dns_name)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("ns/a/agent/Reader/pod/p/0f", "in lower case"),
        ("ns/a/agent/b/pod/p/0F", "in lower case"),
        ("ns/a/agent/b_c/pod/p/0f", "not a DNS name"),
        ("ns/a/agent/b..c/pod/p/0f", "not a DNS name"),
        ("ns/a/agent/b-.c/pod/p/0f", "not a DNS name"),
        ("ns/a/agent/b/pod/p/-", "not a DNS name"),
        ("ns/a/agent/b/pod/p/" + "f" * 64, "not a DNS name"),
        ("ns/a/agent/" + ".".join(["b" * 60] * 4) + "/pod/p/0f", "has [0-9]+ characters, 253 are possible"),
    ],
)
def test_an_id_that_makes_no_dns_name_cannot_serve(path, why):
    with pytest.raises(ValueError, match=why):
        _ = Principal.parse(f"spiffe://mesh.test/{path}").dns_name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spiffe://mesh.test",
        "spiffe://mesh.test/",
        "spiffe:///cp/gateway",
        "https://mesh.test/cp/gateway",
        "spiffe://mesh.test/cp/gateway/",
        "spiffe://mesh.test/cp/gateway\n",
        "spiffe://mesh.test/cp/gateway?x",
        "spiffe://mesh.test/cp/../user/root",
        "spiffe://mesh.test/cp/%67ateway",
        "spiffe://mesh.test/cp/Gateway",
        "spiffe://mesh.test:443/cp/gateway",
        "spiffe://mesh.test/ns/a/agent/b",
        "spiffe://mesh.test/ns/a/agent/b/pod/c",
        "spiffe://mesh.test/ns/a/agent/b/pod/c/d/e",
        "spiffe://mesh.test/ns/a/agent//pod/c/d",
        "spiffe://mesh.test/ns/-a/user/b",
        "spiffe://mesh.test/ns/a.b/user/b",
        "spiffe://mesh.test/ns/a/user/b/cp/gateway",
        "spiffe://mesh.test/user/" + "x" * 300,
    ],
)
def test_anything_else_is_nobody(text):
    with pytest.raises(ValueError, match="not a principal"):
        Principal.parse(text)


def test_an_identity_is_a_folder_of_files():
    identity = Identity(Path("/tls"))
    files = [identity.certificate, identity.key, identity.root, *map(identity.intermediate, TrustClass)]
    assert [file.name for file in files] == [
        "tls.crt",
        "tls.key",
        "ca.crt",
        "control-plane.crt",
        "workloads.crt",
        "users.crt",
    ]
