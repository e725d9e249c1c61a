"""A one-layer image (a docker-archive tar) out of a folder, without docker."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path


def make_image(name: str, folder: Path, to: Path, entrypoint: Sequence[str]) -> None:
    """Writes the tar that `ctr images import` and `docker load` take. `name` is whole: docker.io/a/b:tag."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        layer.add(folder, arcname=".")
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"User": "65532:65532", "Entrypoint": list(entrypoint)},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}"],
            },
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {
        config_name: config,
        "manifest.json": json.dumps(manifest).encode(),
        "layer.tar": packed.getvalue(),
    }
    with tarfile.open(to, "w") as archive:
        for part, data in parts.items():
            entry = tarfile.TarInfo(part)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
