"""Principals out of SPIFFE ids."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_component_is_a_server_by_name():
    assert Principal.parse("spiffe://mesh.test/cp/gateway").dns_name == "gateway.cp.mesh.test"


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
