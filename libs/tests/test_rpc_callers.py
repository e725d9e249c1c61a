"""Callers of an HTTPS edge, by what ASGI says of a request."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from libs.errors import UnauthenticatedError
from libs.identity import Kind
from libs.rpc.callers import EdgeCallers
from libs.testing import ca
from libs.testing.mesh import Mesh

NAMED = {"x-agentctl-namespace": "demo", "x-agentctl-agent": "writer"}


@pytest.fixture
def mesh(tmp_path):
    return Mesh(tmp_path)


def scope(identity=None, headers=(), version=0x0304):
    chain = [] if identity is None else [identity.certificate.read_text()]
    chain = [each.split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n" for each in chain]
    tls = {"tls_version": version, "client_cert_chain": chain}
    raw = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
    return {"extensions": {"tls": tls}, "headers": raw}


def test_a_certificate_says_who_it_is_and_headers_beside_it_nothing(mesh):
    callers = EdgeCallers(mesh.identity("cp/modelgateway"))
    caller = callers.who(scope(mesh.identity("agent/writer"), {**NAMED, "x-agentctl-agent": "rich"}))
    assert caller.principal == mesh.principal("agent/writer")
    callers.check(caller)


def test_an_id_that_another_class_vouches_for_is_nobody(mesh, tmp_path):
    own = mesh.identity("cp/modelgateway")
    theirs = ca.identity(mesh.authority, tmp_path, "/ns/demo/user/ann")
    (own.folder / "users.crt").write_bytes((own.folder / "workloads.crt").read_bytes())
    with pytest.raises(UnauthenticatedError, match="not signed by the users intermediate"):
        EdgeCallers(own).who(scope(theirs))


def test_older_tls_and_certificates_that_have_ended_are_refused(mesh):
    own, agent = mesh.identity("cp/modelgateway"), mesh.identity("agent/writer", lifetime=timedelta(hours=1))
    with pytest.raises(UnauthenticatedError, match=r"TLS 1\.3"):
        EdgeCallers(own).who(scope(agent, version=0x0303))

    now = time.time()
    callers = EdgeCallers(own, clock=lambda: now)
    caller = callers.who(scope(agent))
    now += 7200
    with pytest.raises(UnauthenticatedError, match="has expired"):
        callers.check(caller)
    with pytest.raises(UnauthenticatedError, match="expired at"):
        callers.who(scope(agent))


def test_who_is_on_the_deny_list_is_refused(mesh):
    own, agent = mesh.identity("cp/modelgateway"), mesh.identity("agent/writer")
    (own.folder / "denied").write_text(mesh.principal("agent/writer").id)
    with pytest.raises(UnauthenticatedError, match="deny list"):
        EdgeCallers(own).who(scope(agent))


def test_a_bearer_speaks_for_the_agent_that_it_names_and_only_where_there_is_one(mesh, tmp_path):
    own, token = mesh.identity("cp/modelgateway"), tmp_path / "token"
    token.write_text("t0ken\n")
    callers = EdgeCallers(own, token)
    caller = callers.who(scope(headers={**NAMED, "authorization": "Bearer t0ken"}))
    assert (caller.principal.kind, caller.principal.namespace, caller.principal.name) == (
        Kind.AGENT,
        "demo",
        "writer",
    )
    assert not caller.principal.id.startswith("spiffe:")
    callers.check(caller)
    for who, headers in (
        (callers, {"authorization": "Bearer t0ken"}),
        (callers, {**NAMED, "authorization": "Bearer t0kem"}),
        (callers, {**NAMED, "authorization": "Basic t0ken"}),
        (callers, {**NAMED, "authorization": "Bearer t0ken", "x-agentctl-agent": "a/pod/x/y"}),
        (callers, NAMED),
        (EdgeCallers(own), {**NAMED, "authorization": "Bearer "}),
        (EdgeCallers(own), {}),
    ):
        with pytest.raises(UnauthenticatedError):
            who.who(scope(headers=headers))


def test_an_empty_bearer_file_lets_nobody_in(mesh, tmp_path):
    token = tmp_path / "token"
    token.write_text("\n")
    with pytest.raises(UnauthenticatedError):
        EdgeCallers(mesh.identity("cp/modelgateway"), token).who(
            scope(headers={**NAMED, "authorization": "Bearer "})
        )
