"""KEDA on the node: operator and metrics adapter built from its module, all else as the module's manifests
say. Its admission webhooks are left out: nothing needs them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

from .build import KEDA, build, source
from .image import make_image
from .node import Node
from .place import Place

_NAMESPACE = "keda"
_PARTS = ("crd", "general", "rbac", "service_account", "manager", "metrics-server")
_IMAGES = {  # program → its name upstream, and where its Deployment starts it
    "keda-operator": ("ghcr.io/kedacore/keda", "keda"),
    "keda-adapter": ("ghcr.io/kedacore/keda-metrics-apiserver", "keda-adapter"),
}


def install(place: Place) -> None:
    """Returns when the external metrics API is served. Building takes minutes, once. Raises MissingError,
    CalledProcessError."""
    build(place, KEDA)
    node = Node(place)
    with tempfile.TemporaryDirectory() as scratch:
        for program, (_, entrypoint) in _IMAGES.items():
            root, archive = Path(scratch) / program, Path(scratch) / f"{program}.tar"
            root.mkdir()
            shutil.copy(place.programs / program, root / entrypoint)
            make_image(f"docker.io/local/{program}:{KEDA.version}", root, archive, [f"/{entrypoint}"])
            node.load(archive)
        _kubectl(place, "apply", "--server-side", "-k", str(_manifests(place, Path(scratch))))
    _kubectl(place, "-n", _NAMESPACE, "wait", "--for=condition=Available", "deployment", "--all", _SOON)
    _kubectl(place, "wait", "--for=condition=Available", _API, _SOON)


def remove(place: Place) -> None:
    """Its kinds first, with all objects of them: while its operator can still let go of these."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _manifests(place, Path(scratch))
        for what in (folder / "crd", folder):
            _kubectl(place, "delete", "--ignore-not-found", _SOON, "-k", str(what))


_API = "apiservice/v1beta1.external.metrics.k8s.io"
_SOON = "--timeout=120s"


def _manifests(place: Place, scratch: Path) -> Path:
    """A kustomization: the module's, with our images, and so that it starts soon and beside others."""
    folder = scratch / "manifests"
    for part in _PARTS:
        shutil.copytree(source(place, KEDA) / "config" / part, folder / part, copy_function=shutil.copyfile)
    container = "/spec/template/spec/containers/0"
    changes = {
        f"{container}/imagePullPolicy": "Never",
        f"{container}/readinessProbe/initialDelaySeconds": 1,
        f"{container}/resources/requests/cpu": "10m",
    }
    patch = [{"op": "replace", "path": path, "value": value} for path, value in changes.items()]
    kustomization = {
        "resources": list(_PARTS),
        "images": [
            {"name": name, "newName": f"docker.io/local/{program}", "newTag": KEDA.version}
            for program, (name, _) in _IMAGES.items()
        ],
        "patches": [{"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def _kubectl(place: Place, *words: str) -> None:
    command = ("kubectl", "--kubeconfig", str(place.kubeconfig), *words)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
