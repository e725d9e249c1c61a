"""Writes the CRDs to k8s/base/crds; with --check says which file there is not as it would be written."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import yaml

from . import guard
from .crds import DECLARED, Manifest, crd, policy

_HEADER = "# Written by `make crds` from libs/resources.\n"


def main() -> None:
    """The command. Exit code 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m libs.resources", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file differs")
    parser.add_argument("--to", type=Path, default=Path("k8s/base/crds"), help="the folder")
    options = parser.parse_args()
    wanted = {options.to / name: text for name, text in files().items()}
    if not options.check:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return
    differ = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    differ += sorted(set(options.to.rglob("*.yaml")) - wanted.keys())
    if differ:
        raise SystemExit("`make crds` would change " + ", ".join(map(str, differ)))


def files() -> dict[str, str]:
    """What the folder holds: text by path in it."""
    crds = {f"{declared.kind.plural}.yaml": _text([crd(declared)]) for declared in DECLARED}
    return {
        **crds,
        "kustomization.yaml": _text([_kustomization([*crds, "policy"])]),
        "policy/system-namespace.yaml": _text(policy()),
        "policy/kustomization.yaml": _text([_kustomization(["system-namespace.yaml"])]),
        "guard/agent-pods.yaml": _text(guard.policy()),
        "guard/kustomization.yaml": _text([_kustomization(["agent-pods.yaml"])]),
    }


def _kustomization(resources: Iterable[str]) -> Manifest:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice: kubectl reads anchors, people do not."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(documents: Iterable[Manifest]) -> str:
    return _HEADER + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


if __name__ == "__main__":
    main()
