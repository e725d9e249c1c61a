"""A private dockerd, for a machine that has none, and a base image where no registry is reached."""

from __future__ import annotations

import shutil
import subprocess

from .parts import Parts
from .place import Place, packages

_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_SECONDS = 60.0


def docker_host(place: Place) -> str:
    """Start it unless it runs; what DOCKER_HOST is then. Raises MissingError, PartError."""
    packages({"dockerd": "docker.io", "docker": "docker.io"})
    folder = place.cache / "docker"
    folder.mkdir(parents=True, exist_ok=True)
    host = f"unix://{folder}/docker.sock"
    daemon = Parts(Place(place.cache, folder, place.netns, place.port))
    if _answers(host):
        return host
    (folder / "pid").unlink(missing_ok=True)  # dockerd refuses to start over one that was killed
    daemon.start(
        "dockerd",
        *("dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec"),
        *("-H", host, "--pidfile", folder / "pid"),
        inside=False,
    )
    daemon.await_("dockerd", "an answer", lambda: _answers(host), _SECONDS)
    return host


def _answers(host: str) -> bool:
    return subprocess.run(["docker", "-H", host, "info"], check=False, capture_output=True).returncode == 0


def base_image(place: Place, name: str) -> str:
    """Debian's own Python at the places where the official image has its, with this machine's CAs for pip.

    What `make image` needs in its environment, on one line. Raises MissingError, PartError and
    CalledProcessError.
    """
    host = docker_host(place)
    known = subprocess.run(["docker", "-H", host, "image", "inspect", name], check=False, capture_output=True)
    if known.returncode:
        _import_base(place, host, name)
    return f"DOCKER_HOST={host} DOCKER_BUILDKIT=0 BUILD_ARGS=--network=host"


def _import_base(place: Place, host: str, name: str) -> None:
    packages({"debootstrap": "debootstrap"})
    root, done = place.cache / "base", place.cache / "base.done"
    if not done.exists():
        shutil.rmtree(root, ignore_errors=True)
        include = "--include=ca-certificates,python3,python3-venv,python3-pip"
        command = ["debootstrap", "--variant=minbase", include, "bookworm", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for path in (
            *root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"),
            *root.glob("var/cache/apt/archives/*.deb"),
        ):
            path.unlink()
        for link, target in (("python", "python3"), ("python3", "python3"), ("pip", "pip3")):
            (root / "usr/local/bin" / link).symlink_to(f"/usr/bin/{target}")
        shutil.copy(_CERTIFICATES, f"{root}{_CERTIFICATES}")
        done.touch()
    change = ["-c", f"ENV PIP_CERT={_CERTIFICATES}"]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        command = ["docker", "-H", host, "import", *change, "-", name]
        subprocess.run(command, check=True, stdin=tar.stdout, stdout=subprocess.DEVNULL)
