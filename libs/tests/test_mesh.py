"""The table agrees with the compiled protos, and our package names are ours."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from libs.identity import Kind
from libs.mesh import ANONYMOUS, METHODS, may_call

_FOREIGN = "/grpc.reflection."  # two versions of one service; only the older one has stubs here


def _ours() -> list[FileDescriptor]:
    packages = map(importlib.import_module, ("agentctl", "externalscaler"))
    roots = [Path(entry) for package in packages for entry in package.__path__]
    found = [(root, file) for root in roots for file in root.rglob("*_pb2.py")]
    names = [".".join(file.relative_to(root.parent).with_suffix("").parts) for root, file in found]
    return [importlib.import_module(name).DESCRIPTOR for name in names]


def _methods(files: list[FileDescriptor]) -> set[str]:
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_each_rpc_has_its_row_and_each_row_its_rpc():
    assert {method for method in METHODS if not method.startswith(_FOREIGN)} == _methods(
        [*_ours(), importlib.import_module("grpc_health.v1.health_pb2").DESCRIPTOR]
    )


def test_our_rpcs_are_found_at_all():
    assert "/agentctl.coordination.v1.CoordinationService/Claim" in _methods(_ours())


def test_no_rpc_of_ours_is_open_to_all():
    assert [method for method in _methods(_ours()) if "*" in METHODS[method]] == []


def test_each_role_is_a_kind_or_a_component():
    roles = set().union(*METHODS.values()) - {"*", ANONYMOUS}
    kinds = {kind.value for kind in Kind} - {Kind.COMPONENT.value}
    assert [role for role in roles if role not in kinds and not re.fullmatch("cp/[a-z-]+", role)] == []


@pytest.mark.parametrize(
    ("role", "method", "allowed"),
    [
        ("agent", "/agentctl.coordination.v1.CoordinationService/Claim", True),
        ("producer", "/agentctl.coordination.v1.CoordinationService/Claim", False),
        ("cp/gateway", "/agentctl.coordination.v1.CoordinationService/Submit", True),
        ("cp/keda", "/externalscaler.ExternalScaler/IsActive", True),
        ("cp/keda", "/agentctl.coordination.v1.CoordinationService/GetQueues", False),
        ("user", "/externalscaler.ExternalScaler/IsActive", False),
        ("cp/unheard", "/grpc.health.v1.Health/Check", True),
        ("administrator", "/agentctl.coordination.v1.CoordinationService/Unheard", False),
        ("administrator", "", False),
        ("anonymous", "/grpc.health.v1.Health/Check", True),
        ("anonymous", "/grpc.health.v1.Health/Watch", False),
        ("anonymous", "/agentctl.identity.v1.IdentityService/IssueCertificate", True),
        ("administrator", "/agentctl.identity.v1.IdentityService/IssueCertificate", False),
        ("*", "/agentctl.coordination.v1.CoordinationService/Claim", False),
    ],
)
def test_what_is_not_in_the_table_is_denied(role, method, allowed):
    assert may_call(role, method) is allowed


@pytest.mark.parametrize("name", ["services", "libs", "loadgen", "integration", "agentctl", "externalscaler"])
def test_no_other_distribution_has_a_package_of_our_names(name):
    owners = importlib.metadata.packages_distributions().get(name, ["agentctl"])
    assert set(owners) == {"agentctl"}
