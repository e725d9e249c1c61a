"""What `k8s/` says, without a cluster: it builds, is valid, is locked down, and fits libs/mesh.py."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from libs import mesh

from .kubectl import ROOT, SYSTEM
from .place import KUBERNETES
from .policies import EDGES, FILES, GATEWAYS, text

OVERLAYS = sorted(path.name for path in (ROOT / "k8s" / "overlays").iterdir())
WITH_GATEWAYS = [name for name in OVERLAYS if name.endswith("-gateways")]
KEDA = "keda"
WORKLOADS = {"Deployment", "StatefulSet", "Job", "DaemonSet"}

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kustomize is kubectl's")


def built(overlay: str) -> list[dict[str, Any]]:
    return kustomized(f"overlays/{overlay}")


@cache
def kustomized(folder: str) -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", f"{ROOT}/k8s/{folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(overlay: str) -> list[dict[str, Any]]:
    return [thing["spec"]["template"] for thing in built(overlay) if thing["kind"] in WORKLOADS]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay: str) -> None:
    version = ".".join(KUBERNETES.removeprefix("v").split(".")[:2])
    for thing in built(overlay):
        # A definition's own schema is recursive, and KEDA's are not here: an API server judges them.
        if thing["kind"] != "CustomResourceDefinition" and not thing["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_named_once_and_has_a_known_home(overlay: str) -> None:
    named = [(t["kind"], t["metadata"].get("namespace"), t["metadata"]["name"]) for t in built(overlay)]
    assert len(named) == len(set(named))
    guests = {each for each in named if each[1] not in (None, SYSTEM)}
    with_keda = {
        ("Role", KEDA, "agentctl-operator"),
        ("RoleBinding", KEDA, "agentctl-operator"),
        ("Secret", KEDA, "agentctl-scaler-client"),
    }
    assert guests - with_keda == {("RoleBinding", "kube-system", "agentctl-apiserver")}
    assert guests & with_keda == (with_keda if overlay.endswith("-keda") else set())
    assert ("Namespace", None, SYSTEM) in named


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_meets_the_restricted_standard(overlay: str) -> None:
    [namespace] = [thing for thing in built(overlay) if thing["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(overlay):
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 65532
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_container_says_what_it_needs(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod["spec"]["enableServiceLinks"] is False  # would inject variables that settings refuse
        for container in containers(pod):
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            assert container["image"] == "agentctl:dev"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_token_for_the_api_server_is_where_it_is_used_only(overlay: str) -> None:
    holders = set()
    for pod in pods(overlay):
        assert pod["spec"]["automountServiceAccountToken"] is False
        tokens = {
            volume["name"]
            for volume in pod["spec"].get("volumes", ())
            for source in volume.get("projected", {}).get("sources", ())
            if "serviceAccountToken" in source and "audience" not in source["serviceAccountToken"]
        }
        holders |= {
            container["name"]
            for container in containers(pod)
            if tokens & {mount["name"] for mount in container.get("volumeMounts", ())}
        }
    assert holders <= {"operator", "prepare", "apiserver", "admission", *GATEWAYS}
    assert "operator" in holders


def test_the_plane_has_a_token_that_may_do_less_than_the_operators() -> None:
    [pod] = pods("single")
    mounts = {
        container["name"]: {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for container in containers(pod)
    }
    shared = mounts["plane"]["/var/run/secrets/kubernetes.io/serviceaccount"]
    [folder] = [path for path, name in mounts["operator"].items() if name == shared]
    [account] = [
        each["value"].removesuffix(f":{folder}")
        for container in containers(pod)
        for each in container["env"]
        if each["name"] == "OPERATOR_MINT"
    ]
    assert account in {t["metadata"]["name"] for t in built("single") if t["kind"] == "ServiceAccount"}
    bound = {
        thing["roleRef"]["name"]
        for thing in built("single-gateways")
        if thing["kind"] in ("ClusterRoleBinding", "RoleBinding")
        if account in {subject["name"] for subject in thing["subjects"]}
    }
    assert bound == {
        "agentctl-apiserver",
        "agentctl-admission",
        "agentctl-modelgateway",
        "agentctl-mcpgateway",
        "extension-apiserver-authentication-reader",
    }


@pytest.mark.parametrize("overlay", WITH_GATEWAYS)
def test_the_services_of_the_mesh_are_there_and_lead_to_pods(overlay: str) -> None:
    services = {
        thing["metadata"]["name"]: thing["spec"] for thing in built(overlay) if thing["kind"] == "Service"
    }
    for name, component in (
        ("coordination", mesh.COORDINATION),
        ("operator", mesh.OPERATOR),
        ("operator", mesh.IDENTITY),
        ("apiserver", mesh.APISERVER),
        ("admission", mesh.ADMISSION),
        ("scaler", mesh.SCALER),
        ("modelgateway", mesh.MODEL_GATEWAY),
        ("mcpgateway", mesh.MCP_GATEWAY),
    ):
        [port] = [port for port in services[name]["ports"] if port["port"] == component.port]
        selected = [
            pod
            for pod in pods(overlay)
            if services[name]["selector"].items() <= pod["metadata"]["labels"].items()
        ]
        assert selected, name
        target = port.get("targetPort", port["port"])
        ports = [each for pod in selected for c in containers(pod) for each in c.get("ports", ())]
        assert any(target in (each.get("name"), each["containerPort"]) for each in ports)
        assert any(each["containerPort"] == component.port for each in ports)


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", ["apiserver", "admission"])
def test_the_cluster_reaches_the_edges_at_port_443(overlay: str, name: str) -> None:
    [service] = [t["spec"] for t in built(overlay) if (t["kind"], t["metadata"]["name"]) == ("Service", name)]
    [target] = [port["targetPort"] for port in service["ports"] if port["port"] == 443]
    [container] = [
        container
        for pod in pods(overlay)
        if service["selector"].items() <= pod["metadata"]["labels"].items()
        for container in containers(pod)
        if target in {port["name"] for port in container["ports"]}
    ]
    [port] = [port["containerPort"] for port in container["ports"] if port["name"] == target]
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told[f"{name.upper()}_EDGE_PORT"] == str(port) == str(EDGES[name])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_keeps_webhooks_from_stranding_anything(overlay: str) -> None:
    webhooks = {
        thing["kind"]: webhook
        for thing in built(overlay)
        if thing["kind"].endswith("WebhookConfiguration")
        for webhook in thing["webhooks"]
    }
    assert {kind: each["failurePolicy"] for kind, each in webhooks.items()} == {
        "ValidatingWebhookConfiguration": "Fail",
        "MutatingWebhookConfiguration": "Ignore",
    }
    for webhook in webhooks.values():
        [rule] = webhook["rules"]
        assert rule["operations"] == ["CREATE", "UPDATE"], "deletes ask nobody"
        assert not [each for each in rule["resources"] if "/" in each], "statuses ask nobody"
        assert webhook["timeoutSeconds"] <= 5
        [selected] = webhook["namespaceSelector"]["matchExpressions"]
        assert (selected["operator"], selected["values"]) == ("NotIn", ["kube-system", SYSTEM])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_get_the_image_of_the_operator(overlay: str) -> None:
    [operator] = [c for pod in pods(overlay) for c in containers(pod) if c["name"] == "operator"]
    environment = {each["name"]: each.get("value") for each in operator["env"]}
    assert environment["OPERATOR_AGENT_IMAGE"] == operator["image"]


@pytest.mark.parametrize("overlay", WITH_GATEWAYS)
def test_agents_are_told_of_gateways_at_ports_that_lead_to_their_edges(overlay: str) -> None:
    every = [container for pod in pods(overlay) for container in containers(pod)]
    told = {each["name"]: each.get("value") for c in every for each in c.get("env", ())}
    for name, variable, path in (("modelgateway", "MODEL", "/v1"), ("mcpgateway", "MCP", "")):
        port = GATEWAYS[name]
        assert told[f"AGENTCTL_{variable}_GATEWAY_URL"] == f"https://{name}.{SYSTEM}.svc:{port}{path}"
        [spec] = [
            t["spec"] for t in built(overlay) if (t["kind"], t["metadata"]["name"]) == ("Service", name)
        ]
        [target] = [each["targetPort"] for each in spec["ports"] if each["port"] == port]
        [pod] = [p for p in pods(overlay) if spec["selector"].items() <= p["metadata"]["labels"].items()]
        ports = [each for container in containers(pod) for each in container.get("ports", ())]
        assert [each["containerPort"] for each in ports if each["name"] == target] == [port]
        assert told.get(f"{name.upper()}_EDGE_PORT", str(port)) == str(port)


@pytest.mark.parametrize("overlay", WITH_GATEWAYS)
def test_the_stand_in_is_where_the_model_gateway_and_the_operator_look_for_it(overlay: str) -> None:
    every = [container for pod in pods(overlay) for container in containers(pod)]
    told = {each["name"]: each.get("value") for c in every for each in c.get("env", ())}
    [spec] = [
        t["spec"] for t in built(overlay) if (t["kind"], t["metadata"]["name"]) == ("Service", "provider")
    ]
    [port] = spec["ports"]
    url = f"https://provider.{SYSTEM}.svc:{port['port']}/v1"
    assert told["MODELGATEWAY_STAND_IN_URL"] == told["OPERATOR_STAND_IN_URL"] == url
    assert told["MODELGATEWAY_PROVIDER_CA_FILE"] == f"{told['AGENTCTL_TRUST_DIR']}/ca.crt"
    [provider] = [c for c in every if "PROVIDER_LISTEN" in {each["name"] for each in c.get("env", ())}]
    [listening] = [each["containerPort"] for each in provider["ports"] if each["name"] == port["targetPort"]]
    assert told["PROVIDER_LISTEN"] == f"0.0.0.0:{listening}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_keda_finds_the_scaler_and_its_certificate_where_it_is_installed_only(overlay: str) -> None:
    things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in built(overlay)}
    [operator] = [c for pod in pods(overlay) for c in containers(pod) if c["name"] == "operator"]
    told = {each["name"]: each.get("value") for each in operator["env"]}
    proof = things.get(("ClusterTriggerAuthentication", "agentctl-scaler"))
    if not overlay.endswith("-keda"):
        assert proof is None
        assert not {"AGENTCTL_SCALER_ADDRESS", "OPERATOR_KEDA_NAMESPACE"} & told.keys()
        return
    assert proof is not None
    assert told["AGENTCTL_SCALER_ADDRESS"] == f"scaler.{SYSTEM}.svc:{mesh.SCALER.port}"
    assert things["Service", "scaler"]["spec"]["clusterIP"] == "None"
    assert told["OPERATOR_KEDA_NAMESPACE"] == KEDA
    name = "agentctl-scaler-client"
    assert {(each["parameter"], each["name"], each["key"]) for each in proof["spec"]["secretTargetRef"]} == {
        ("caCert", name, "ca.crt"),
        ("tlsClientCert", name, "tls.crt"),
        ("tlsClientKey", name, "tls.key"),
    }
    secret = things["Secret", name]
    assert secret["type"] == "Opaque"
    assert not {"data", "stringData"} & secret.keys(), "to apply this again would empty it"
    [role] = [t for t in built(overlay) if (t["kind"], t["metadata"].get("namespace")) == ("Role", KEDA)]
    [rule] = role["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["secrets"], [name])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.parent.name)
def test_the_network_policies_are_those_of_the_mesh_table(path: Any) -> None:
    assert path.read_text() == text(path), "run python -m integration.cluster.policies"
    for policy in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(policy, "1.36", strict=True)
        for rule in policy["spec"].get("ingress", ()):
            assert rule.get("from") != [], "an empty list is everybody"


def test_the_scaler_is_reached_by_keda_and_clients_alone() -> None:
    [path] = [path for path in FILES if "tenant" not in path.parts]
    policies = {each["metadata"]["name"]: each["spec"] for each in yaml.safe_load_all(path.read_text())}
    [rule] = policies["externalscaler"]["ingress"]
    keda, clients = rule["from"]
    assert keda == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": KEDA}}}
    assert clients["podSelector"]["matchLabels"] == {"agentctl.dev/client": "true"}
    [coordination] = policies["coordination"]["ingress"]
    [components] = coordination["from"][0]["podSelector"]["matchExpressions"]
    assert "scaler" in components["values"]


def test_agents_are_called_by_the_control_plane_and_clients_and_measured_by_prometheus_alone() -> None:
    [path] = [path for path in FILES if "tenant" in path.parts]
    [policy] = yaml.safe_load_all(path.read_text())
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
    assert set(by_port) == {mesh.AGENT.port, 9090}
    plane, clients = by_port[mesh.AGENT.port]
    assert plane["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": SYSTEM}
    [components] = plane["podSelector"]["matchExpressions"]
    assert components["values"] == ["apiserver", "gateway", "operator", "plane"]
    assert clients["podSelector"]["matchLabels"] == {"agentctl.dev/client": "true"}
    [scraper] = by_port[9090]
    assert scraper["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}


def test_no_role_lets_anybody_make_secrets_but_the_operator() -> None:
    for overlay in OVERLAYS:
        for thing in built(overlay):
            if thing["kind"] in ("Role", "ClusterRole") and "operator" not in json.dumps(thing["metadata"]):
                for rule in thing["rules"]:
                    named = "resourceNames" in rule
                    assert named or not {"secrets", "*"} & set(rule.get("resources", ())), thing["metadata"]


def test_gateways_read_only_the_secrets_that_a_namespace_names() -> None:
    for overlay in OVERLAYS:
        for thing in built(overlay):
            if thing["kind"] == "ClusterRole" and thing["metadata"]["name"].endswith("gateway"):
                assert {verb for rule in thing["rules"] for verb in rule["verbs"]} == {"list", "watch"}
                assert {group for rule in thing["rules"] for group in rule["apiGroups"]} == {"agentctl.dev"}
    role, binding = kustomized("tenant/gateway-secrets")
    [rule] = role["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["list", "watch"])
    assert rule["resourceNames"]
    assert {(each["name"], each["namespace"]) for each in binding["subjects"]} == {
        (name, SYSTEM) for name in (*GATEWAYS, "plane-api")
    }
