"""A container's declaration as the start of a process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from libs.cluster import Object

from . import last_words
from .environment import MOST_TEXT, expanded
from .host import Host
from .process import Launch
from .volumes import Volumes, translated


class Within(Protocol):
    """What a container knows of its pod."""

    folder: Path
    volumes: Volumes
    grace: float

    def view(self) -> Object:
        """The pod as it is now, with its address."""

    def changed(self) -> None:
        """To be told that the container's status is another."""

    def news(self) -> asyncio.Event:
        """Set as soon as a ConfigMap, Secret or ServiceAccount of the namespace has changed from now on."""


def message_of(declared: Object, pod: Within) -> Path:
    """The file in which the container says its last words."""
    return pod.folder / f"{declared['name']}.message"


def launch_of(declared: Object, pod: Within, variables: Mapping[str, str], host: Host) -> Launch:
    """How the container starts, its own variables being those. Paths under its mountPaths are put right; it
    starts in its workingDir, or in the pod's folder. InvalidError if its words become too long."""
    mounts = {**pod.volumes.mounts(declared), last_words.path_in(declared): message_of(declared, pod)}
    words, room = list[str](), MOST_TEXT
    for word in (*declared["command"], *declared.get("args", ())):
        text = expanded(word, variables, room)
        room -= len(text)
        words.append(translated(text, mounts))
    scratch = {"TMPDIR": str(mounts["/tmp"])} if "/tmp" in mounts else {}  # not the machine's own
    own = {name: translated(value, mounts) for name, value in variables.items()}
    host_name = {"HOSTNAME": pod.view()["metadata"]["name"]}
    directory = declared.get("workingDir")
    return Launch(
        words=host.words(words),
        environment={**host.environment, **host_name, **scratch, **own},
        directory=Path(translated(directory, mounts)) if directory else pod.folder,
        log=pod.folder / f"{declared['name']}.log",
        record=pod.folder / f"{declared['name']}.process",
    )


def program_of(launch: Launch) -> str | None:
    """The file that the first word means; None if there is none that could be run where it starts."""
    word = launch.words[0]
    if not launch.directory.is_dir():
        return None
    if "/" in word:
        path = launch.directory / word
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(word, path=launch.environment.get("PATH", os.defpath))
