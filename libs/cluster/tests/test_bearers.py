"""Who a caller of the mesh is to RBAC."""

from __future__ import annotations

import pytest

from libs.cluster.bearers import bearer_of
from libs.errors import DeniedError
from libs.identity import Principal


def principal(path: str) -> Principal:
    return Principal.parse(f"spiffe://mesh.test{path}")


@pytest.mark.parametrize("path", ["/ns/demo/user/demo.ann", "/user/demo.ann"])
def test_a_person_is_the_service_account_that_its_certificate_names(path: str):
    bearer = bearer_of(principal(path))
    assert bearer.username == "system:serviceaccount:demo:ann"
    assert bearer.service_account == ("demo", "ann")
    assert set(bearer.groups) == {
        "system:serviceaccounts",
        "system:serviceaccounts:demo",
        "system:authenticated",
    }


def test_an_account_may_have_dots_and_a_namespace_has_none():
    assert bearer_of(principal("/user/demo.ann.smith")).service_account == ("demo", "ann.smith")


@pytest.mark.parametrize(
    "path",
    [
        "/user/root",
        "/ns/demo/user/ann",
        "/ns/demo/producer/demo.ann",
        "/ns/demo/agent/demo.ann/pod/x/uid-1",
        "/cp/gateway",
    ],
)
def test_nobody_else_is_anybody_to_rbac(path: str):
    with pytest.raises(DeniedError):
        bearer_of(principal(path))
