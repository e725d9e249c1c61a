"""The node: brings every part up in an order that works, loads images, takes everything down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .build import build, missing
from .certificates import make_certificates
from .configs import PAUSE, volumes, write_configs
from .image import make_image
from .parts import Parts
from .place import NODE, NODE_IP, PODS, SERVICES, MissingError, Place, needs_of_node

_HERE = Path(__file__).parent
_CGROUPS = Path("/sys/fs/cgroup")


class Node:
    """One machine's cluster. All verbs may be repeated: `up` starts what is missing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts = Parts(place)

    def up(self) -> None:
        """Returns when the node is Ready. Raises MissingError, PartError."""
        needs_of_node()
        build(self._place)
        make_certificates(self._place.pki)
        write_configs(self._place, self._cgroup())
        self._network()
        self._control()
        self._runtime()
        for folder in volumes(self._place):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # any user of a pod
        self._kubectl("apply", "-f", str(_HERE / "coredns.yaml"), "-f", f"{self._place.run}/volumes.yaml")
        self._start("coredns", "-conf", f"{self._place.run}/Corefile")
        self._parts.await_("kubelet", "the node object", lambda: self._has(f"node/{NODE}"))
        self._kubectl("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=90s")
        self._parts.await_(
            "controller-manager", "a ServiceAccount", lambda: self._has("serviceaccount/default")
        )
        self._start(
            "kube-router",
            *("--kubeconfig", f"{self._place.run}/proxy.kubeconfig", "--hostname-override", NODE),
            *("--run-firewall", "--run-router=false", "--run-service-proxy=false"),
            *("--service-cluster-ip-range", SERVICES),
        )

    def can(self) -> None:
        """Raises MissingError if `up` would fail, or take minutes."""
        needs_of_node()
        if missing(self._place):
            raise MissingError("its programs are not built; `make cluster` does it, in about eight minutes")

    def load(self, archive: Path) -> None:
        """An image's tar (docker-archive or OCI) becomes known to the node. Raises CalledProcessError."""
        self._ctr("images", "import", "--all-platforms", str(archive))

    def status(self) -> list[str]:
        """A line about each part, and what is yet to be built."""
        lines = [f"{name}: {self._parts.pid(name) or 'not running'}" for name in self._parts.names()]
        return lines + [f"{name}: not built" for name in missing(self._place)]

    def kill(self, part: str) -> None:
        """SIGKILL to one part; `up` starts it again."""
        self._parts.kill(part)

    def down(self) -> None:
        """Ends everything and removes the state; the programs stay."""
        place = self._place
        self._parts.kill("kubelet")  # else it starts again what we end
        if place.socket.exists():
            for task in self._ctr("tasks", "ls", "-q").split():
                with suppress(subprocess.CalledProcessError):  # it has just ended
                    self._ctr("tasks", "kill", "-s", "SIGKILL", task)
        for name in self._parts.names():
            self._parts.kill(name)
        if Path(f"/run/netns/{place.netns}").exists():
            for pid in self._ip("netns", "pids", place.netns).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            self._ip("netns", "del", place.netns)
        for shim in self._shims():
            with suppress(ProcessLookupError):
                os.kill(shim, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{place.run}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=True)
        shutil.rmtree(place.run, ignore_errors=True)
        self._remove_cgroup()

    def _shims(self) -> list[int]:
        """A container's supervisor outlives containerd, in the network namespace of whoever asked for it."""
        mine = str(self._place.socket).encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def _start(self, name: str, *arguments: str) -> None:
        self._parts.start(name, self._place.programs / name, *arguments)

    def _control(self) -> None:
        place, pki, run = self._place, self._place.pki, self._place.run
        self._start(
            "etcd",
            *("--data-dir", f"{run}/etcd", "--unsafe-no-fsync", "--log-level", "warn"),
            *("--listen-client-urls", "http://127.0.0.1:2379"),
            *("--advertise-client-urls", "http://127.0.0.1:2379"),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
        )
        self._parts.start("apiserver", place.programs / "kube-apiserver", *_api_server(pki))
        forward = (sys.executable, str(_HERE / "forward.py"), str(place.port), place.netns, NODE_IP, "6443")
        self._parts.start("forward", *forward, inside=False)
        # The controller manager and the scheduler end at once without the roles that are made at /readyz.
        self._parts.await_("apiserver", "/readyz", self._is_ready)
        config = ("--kubeconfig", f"{run}/controller-manager.kubeconfig")
        self._parts.start(
            "controller-manager", place.programs / "kube-controller-manager",
            *config, *(f"--{use}-{config[0][2:]}={config[1]}" for use in ("authentication", "authorization")),
            "--service-account-private-key-file", pki / "sa.key", "--root-ca-file", pki / "ca.crt",
            "--use-service-account-credentials", "--leader-elect=false",
            "--cluster-signing-cert-file", pki / "ca.crt", "--cluster-signing-key-file", pki / "ca.key",
            "--allocate-node-cidrs", "--cluster-cidr", PODS, "--node-cidr-mask-size", "24",
            "--horizontal-pod-autoscaler-sync-period", "5s",
            "--horizontal-pod-autoscaler-downscale-stabilization", "30s",
        )  # fmt: skip
        scheduler = ("--kubeconfig", f"{run}/scheduler.kubeconfig", "--leader-elect=false")
        self._parts.start("scheduler", place.programs / "kube-scheduler", *scheduler)

    def _runtime(self) -> None:
        place, run = self._place, self._place.run
        self._start("containerd", "--config", f"{run}/containerd/config.toml")
        self._parts.await_("containerd", "its socket", place.socket.exists)
        if PAUSE not in self._ctr("images", "ls", "-q").split():
            with tempfile.TemporaryDirectory() as scratch:
                folder, archive = Path(scratch) / "root", Path(scratch) / "pause.tar"
                folder.mkdir()
                compiler = ("gcc", "-static", "-Os", "-o", folder / "pause", _HERE / "pause.c")
                subprocess.run(compiler, check=True)
                make_image(PAUSE, folder, archive, ["/pause"])
                self.load(archive)
        self._start(
            "kubelet",
            *("--config", f"{run}/kubelet/config.yaml", "--kubeconfig", f"{run}/kubelet.kubeconfig"),
            *("--hostname-override", NODE, "--node-ip", NODE_IP),
            *("--root-dir", f"{run}/kubelet", "--cert-dir", f"{run}/kubelet/pki"),
        )
        self._start(
            "kube-proxy",
            *("--kubeconfig", f"{run}/proxy.kubeconfig", "--hostname-override", NODE),
            *("--cluster-cidr", PODS, "--proxy-mode", "iptables", "--conntrack-max-per-core", "0"),
        )

    def _network(self) -> None:
        """The namespace, with a bridge that carries the node's address: some kernels have no dummy device."""
        netns = self._place.netns
        if Path(f"/run/netns/{netns}").exists():
            return
        self._ip("netns", "add", netns)
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "add", "node0", "type", "bridge"),
            ("addr", "add", f"{NODE_IP}/32", "dev", "node0"),
            ("link", "set", "node0", "up"),
            ("route", "add", "default", "dev", "node0"),
        ):
            self._ip("-n", netns, *words)
        forwarding = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.route_localnet=1")
        self._ip("netns", "exec", netns, "sysctl", "-qw", *forwarding)

    def _cgroups(self) -> list[Path]:
        """Our own in each hierarchy: a kubelet removes those of pods that it does not know."""
        v2 = (_CGROUPS / "cgroup.controllers").exists()
        roots = [_CGROUPS] if v2 else [path for path in _CGROUPS.iterdir() if not path.is_symlink()]
        return [root / self._place.netns for root in roots if root.is_dir()]

    def _cgroup(self) -> str:
        for cgroup in self._cgroups():
            cgroup.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (cgroup.parent / "tasks").exists() and (cgroup / name).exists():
                    (cgroup / name).write_text((cgroup.parent / name).read_text())
        return f"/{self._place.netns}"

    def _remove_cgroup(self) -> None:
        for cgroup in filter(Path.exists, self._cgroups()):
            for folder, _, _ in os.walk(cgroup, topdown=False):
                for _ in range(50):  # the kernel takes a moment for the last process
                    with suppress(OSError):
                        os.rmdir(folder)
                        break
                    time.sleep(0.1)

    def _is_ready(self) -> bool:
        return self._asks("get", "--raw", "/readyz")

    def _has(self, name: str) -> bool:
        return self._asks("get", name)

    def _asks(self, *words: str) -> bool:
        command = ("kubectl", "--kubeconfig", str(self._place.kubeconfig), *words)
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def _kubectl(self, *words: str) -> str:
        return _said(("kubectl", "--kubeconfig", str(self._place.kubeconfig), *words))

    def _ctr(self, *words: str) -> str:
        program = str(self._place.programs / "ctr")
        return _said((program, "-a", str(self._place.socket), "-n", "k8s.io", *words))

    @staticmethod
    def _ip(*words: str) -> str:
        return _said(("ip", *words))


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _api_server(pki: Path) -> list[str]:
    flags = {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": "0.0.0.0",
        "secure-port": "6443",
        "advertise-address": NODE_IP,
        "service-cluster-ip-range": SERVICES,
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "enable-aggregator-routing": "true",
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": pki / "front-proxy.crt",
        "proxy-client-key-file": pki / "front-proxy.key",
    }
    return [f"--{name}={value}" for name, value in flags.items()]
