"""What the aggregated API says of itself, as kube-apiserver, kubectl and the stock client read it."""

from __future__ import annotations

import asyncio
import re

import jsonschema  # type: ignore[import-untyped]
import pytest
from kubernetes import client

from libs.cluster.local import open_local
from libs.testing.mesh import Mesh
from services.apiserver import discovery
from services.apiserver.verbs import Kind, Verb

from .edges import BASE, Kube, Manager, ask, served

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
BETA = V2.replace("v=v2", "v=v2beta1")
PROTO_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
NAMES = [f"{kind}/{each}" for kind in ("agents", "agentfleets") for each in (*map(str, Verb), "status")]


@pytest.fixture
async def edge(tmp_path):
    async with (
        open_local(tmp_path / "home") as cluster,
        served(Mesh(tmp_path), Kube(cluster), Manager()) as edge,
    ):
        yield edge


def get(edge, path, version="2", **headers):
    return ask(edge, "GET", path, {name.replace("_", "-"): value for name, value in headers.items()})


async def test_the_stock_client_reads_it_without_a_name(edge, tmp_path):
    configuration = client.Configuration(host=f"https://{edge.address}")
    configuration.ssl_ca_cert = str(Mesh(tmp_path).identity("cp/apiserver").root)
    configuration.assert_hostname = False

    def read():
        with client.ApiClient(configuration) as api:
            groups = client.ApisApi(api).get_api_versions()
            one = client.CustomObjectsApi(api).get_api_resources("management.agentctl.dev", "v1alpha1")
            return groups, one

    groups, resources = await asyncio.to_thread(read)
    [group] = groups.groups
    assert group.name == "management.agentctl.dev"
    assert group.preferred_version.group_version == "management.agentctl.dev/v1alpha1"
    assert [each.name for each in resources.resources] == NAMES
    assert {each.name: each.verbs for each in resources.resources}["agents/status"] == ["get"]
    assert all(each.namespaced for each in resources.resources)


async def test_there_are_only_subresources(edge):
    said = (await get(edge, BASE)).json
    assert (said["kind"], said["groupVersion"]) == ("APIResourceList", "management.agentctl.dev/v1alpha1")
    assert all("/" in each["name"] for each in said["resources"])
    kinds = {each["name"]: each["kind"] for each in said["resources"]}
    assert (kinds["agents/drain"], kinds["agents/status"]) == ("Status", "AgentStatus")


async def test_a_group_is_found_by_its_path(edge):
    said = (await get(edge, "/apis/management.agentctl.dev")).json
    assert said["kind"] == "APIGroup"
    assert said["preferredVersion"] == {
        "groupVersion": "management.agentctl.dev/v1alpha1",
        "version": "v1alpha1",
    }


@pytest.mark.parametrize(("accept", "version"), [(f"{V2},{BETA},application/json", "v2"), (BETA, "v2beta1")])
async def test_an_aggregator_gets_all_at_once_under_the_very_content_type(edge, accept, version):
    said = await get(edge, "/apis", accept=accept)
    assert (
        said.headers["content-type"]
        == f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    )
    assert (said.json["kind"], said.json["apiVersion"]) == (
        "APIGroupDiscoveryList",
        f"apidiscovery.k8s.io/{version}",
    )
    [group] = said.json["items"]
    [offered] = group["versions"]
    found = [
        f"{resource['resource']}/{each['subresource']}"
        for resource in offered["resources"]
        for each in resource["subresources"]
    ]
    assert found == NAMES
    for resource in offered["resources"]:  # without a kind clients take them for parents, no more
        assert resource["responseKind"] == {"group": "", "version": "", "kind": ""}
        assert all(each["responseKind"]["kind"] for each in resource["subresources"])


@pytest.mark.parametrize("accept", ["", "application/json", "*/*", f"application/json,{V2}", "text/html"])
async def test_others_get_the_list_of_groups(edge, accept):
    said = await get(edge, "/apis", accept=accept)
    assert said.headers["content-type"] == "application/json"
    assert said.json["kind"] == "APIGroupList"


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (V2.replace(";", "; "), "v2"),
        (f"{V2.replace('v=v2', 'v=v9')},{BETA}", "v2beta1"),
        (f"{PROTO_V2},{V2}", "v2"),
        (V2.replace("apidiscovery.k8s.io", "meta.k8s.io"), ""),
    ],
)
def test_the_first_form_that_we_have_is_meant(accept, version):
    assert discovery.negotiated(accept) == version


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/apis", V2),
        ("/openapi/v2", "application/json"),
        ("/openapi/v3", "*/*"),
        (f"/openapi/v3{BASE}", "application/json"),
    ],
)
async def test_who_has_it_already_is_told_so(edge, path, accept):
    etag = (await get(edge, path, accept=accept)).headers["etag"]
    assert re.fullmatch(r'"[0-9A-F]{64}"', etag)
    again = await get(edge, path, accept=accept, if_none_match=etag)
    assert (again.code, again.body, again.headers["etag"]) == (304, b"", etag)


async def test_who_wants_protobuf_only_is_told_that_there_is_none(edge):
    for path in ("/openapi/v2", f"/openapi/v3{BASE}"):
        said = await get(edge, path, accept=PROTO_V2)
        assert (said.code, said.json["reason"]) == (406, "NotAcceptable")
        assert (await get(edge, path, accept=f"{PROTO_V2},application/json;q=0.5")).code == 200


async def test_the_index_leads_to_a_document_that_may_be_kept(edge):
    index = (await get(edge, "/openapi/v3")).json
    [(path, entry)] = index["paths"].items()
    assert f"/{path}" == BASE
    document = await get(edge, entry["serverRelativeURL"])
    assert document.headers["cache-control"] == "public, immutable"
    assert f"hash={document.headers['etag'].strip(chr(34))}" in entry["serverRelativeURL"]
    old = await get(edge, f"/openapi/v3{BASE}?hash=OLD")
    assert (old.code, old.headers["location"]) == (301, entry["serverRelativeURL"])


SCHEMA = {"type": "object", "properties": {"type": {"enum": ["object", "string", "boolean"]}}}


def described(version, parameter, bodies):
    """What OpenAPI demands of a document as small as ours."""
    response = {"type": "object", "required": ["description"], **bodies}
    operation = {
        "type": "object",
        "required": ["operationId", "responses"],
        "properties": {
            "parameters": {"type": "array", "items": parameter},
            "responses": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"pattern": "^[1-5][0-9]{2}$"},
                "additionalProperties": response,
            },
        },
    }
    path = {"type": "object", "propertyNames": {"enum": ["get", "post"]}, "additionalProperties": operation}
    return {
        "type": "object",
        "required": [version, "info", "paths"],
        "properties": {
            "info": {"type": "object", "required": ["title", "version"]},
            "paths": {"type": "object", "propertyNames": {"pattern": "^/"}, "additionalProperties": path},
        },
    }


NAMED = {"type": "object", "required": ["name", "in"]}
FORMS = {
    "/openapi/v2": described(
        "swagger",
        {
            **NAMED,
            "if": {"properties": {"in": {"const": "body"}}},
            "then": {"required": ["schema"]},
            "else": {"required": ["type"], "properties": {"in": {"enum": ["path", "query"]}}},
        },
        {"properties": {"schema": SCHEMA}},
    ),
    f"/openapi/v3{BASE}": described(
        "openapi",
        {**NAMED, "required": ["name", "in", "schema"], "properties": {"in": {"enum": ["path", "query"]}}},
        {"required": ["content"]},
    ),
}


@pytest.mark.parametrize("path", list(FORMS))
async def test_a_document_is_valid_and_has_every_path(edge, path):
    document = (await get(edge, path)).json
    jsonschema.validate(document, FORMS[path])
    wanted = {f"{BASE}/namespaces/{{namespace}}/{kind}/{{name}}" for kind in Kind}
    assert set(document["paths"]) == {
        f"{base}/{each}" for base in wanted for each in (*map(str, Verb), "status")
    }
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names) == 12
    assert "lameDuckNamespacedAgentFleet" in names
    for operation in operations:
        required = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert required == {"namespace", "name"}
