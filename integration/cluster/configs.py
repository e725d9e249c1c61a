"""What the node's programs read. Written when the node is made, then left."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from .place import DNS_IP, NODE_IP, PODS, Place

PAUSE = "docker.io/local/pause:1"
"""The image of a pod's sandbox."""

_VOLUMES = 64


def write_configs(place: Place, cgroup: str) -> None:
    """Everything that is not there yet."""
    inside, outside = f"https://{NODE_IP}:6443", f"https://127.0.0.1:{place.port}"
    files = {
        "containerd/config.toml": _containerd(place),
        "cni/10-bridge.conflist": json.dumps(_network(place)),
        "kubelet/config.yaml": yaml.safe_dump(_kubelet(place, cgroup)),
        "resolv.conf": "nameserver 127.0.0.1\n",
        "Corefile": _dns(place),
        "volumes.yaml": yaml.safe_dump_all(_volumes(place)),
        "admin.kubeconfig": _kubeconfig(place, "admin", outside),
    }
    for user in ("controller-manager", "scheduler", "kubelet", "proxy"):
        files[f"{user}.kubeconfig"] = _kubeconfig(place, user, inside)
    for name, text in files.items():
        path = place.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)


def volumes(place: Place) -> list[Path]:
    """The folders that volume claims get, one each."""
    return [place.run / "volumes" / str(number) for number in range(_VOLUMES)]


def _volumes(place: Place) -> list[dict[str, object]]:
    """The default StorageClass, of volumes that are there already."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage: dict[str, object] = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "node", "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    made: list[dict[str, object]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"node-{path.name}"},
            "spec": {
                "storageClassName": "node",
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": str(path)},
            },
        }
        for path in volumes(place)
    ]
    return [storage, *made]


def _kubeconfig(place: Place, user: str, server: str) -> str:
    keys = {
        "client-certificate": str(place.pki / f"{user}.crt"),
        "client-key": str(place.pki / f"{user}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [
            {
                "name": "local",
                "cluster": {"server": server, "certificate-authority": str(place.pki / "ca.crt")},
            }
        ],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
        "users": [{"name": user, "user": keys}],
    }
    return yaml.safe_dump(config)


def _network(place: Place) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(place.run / "cni" / "ipam"),
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}, ports]}


def _containerd(place: Place) -> str:
    # Without CAP_SYS_RESOURCE runc cannot lower oom_score_adj, hence restrict_oom_score_adj.
    return f"""version = 3
root = "{place.run}/containerd/root"
state = "{place.run}/containerd/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
address = "{place.socket}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{place.programs}/cni"]
conf_dir = "{place.run}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _kubelet(place: Place, cgroup: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(place.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{place.socket}",
        "podLogsDir": str(place.run / "logs-of-pods"),
        "resolvConf": str(place.run / "resolv.conf"),
        "tlsCertFile": str(place.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(place.pki / "kubelet.key"),
        "maxPods": 250,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,  # some root devices have no figures to enforce it with
    }


def _dns(place: Place) -> str:
    def pki(name: str) -> Path:
        return place.pki / name

    return f""".:53 {{
  bind {NODE_IP}
  errors
  health {NODE_IP}:8053
  kubernetes cluster.local in-addr.arpa {{
    endpoint https://{NODE_IP}:6443
    tls {pki("admin.crt")} {pki("admin.key")} {pki("ca.crt")}
  }}
  cache 5
}}
"""
