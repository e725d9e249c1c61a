"""The node: up, down, load, status, kill, KEDA; docker and base where our image cannot be built otherwise."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from . import keda
from .docker import base_image, docker_host
from .node import Node
from .parts import PartError
from .place import MissingError, Place


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start what does not run; prints the kubeconfig's path")
    verbs.add_parser("down", help="end everything, remove the state")
    verbs.add_parser("can", help="whether up would work here, and at once; if not, why")
    verbs.add_parser("status", help="one line a part")
    verbs.add_parser("load", help="import an image").add_argument("archive", type=Path)
    verbs.add_parser("kill", help="kill -9 one part; up starts it again").add_argument("part")
    of_keda = verbs.add_parser("keda", help="install KEDA; built in about five minutes, once")
    of_keda.add_argument("--remove", action="store_true", help="with its kinds and all objects of them")
    verbs.add_parser("docker", help="start a private dockerd; prints its DOCKER_HOST")
    base = verbs.add_parser("base", help="give that dockerd a stand-in for Python's official image")
    base.add_argument("name", nargs="?", default="python:3.11-slim-bookworm")
    return parser.parse_args()


def _act(arguments: argparse.Namespace, place: Place) -> list[str]:
    """The lines to print."""
    node = Node(place)
    match arguments.verb:
        case "up":
            node.up()
            return [str(place.kubeconfig)]
        case "can":
            node.can()
        case "load":
            node.load(arguments.archive)
        case "kill":
            node.kill(arguments.part)
        case "keda":
            (keda.remove if arguments.remove else keda.install)(place)
        case "down":
            node.down()
        case "status":
            return node.status()
        case "docker":
            return [docker_host(place)]
        case "base":
            return [base_image(place, arguments.name)]
    return []


def main() -> None:
    try:
        lines = _act(_arguments(), Place.of(dict(os.environ)))
    except (MissingError, PartError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
