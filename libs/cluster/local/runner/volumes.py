"""A pod's volumes: real folders, filled from the objects that they name and kept up to date.

Files change in place, each at once (written beside and renamed). A process here sees the machine's own file
system, so a path under a container's mountPath that its words or variables name is put right before it
starts. There is no subPath, and no volume but those below.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import anyio

from libs.cluster import Object
from libs.errors import InvalidError

from .environment import field_of
from .inputs import Inputs

_TOKEN_LIFE = 0.8  # of a token's life is over when the next one takes its place
_TOKEN_SECONDS = 3600
_PUBLIC, _PRIVATE = 0o644, 0o600
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHOWN = 100
_KINDS = ("emptyDir", "configMap", "secret", "projected", "downwardAPI")


@dataclass(frozen=True, slots=True)
class File:
    """What a file of a volume is to hold."""

    content: bytes
    mode: int


Files = dict[str, File]


class Volumes:
    """The folders of one pod's volumes."""

    def __init__(self, folder: Path, pod: Object, inputs: Inputs) -> None:
        self._folder = folder
        self._inputs = inputs
        self._declared: list[Object] = pod["spec"].get("volumes") or []
        self._tokens: dict[tuple[str, str], tuple[float, bytes]] = {}

    def check(self, containers: Iterable[Object]) -> None:
        """InvalidError if one of them, or the pod, wants what there is not here."""
        names = set()
        for volume in self._declared:
            names.add(volume["name"])
            if not any(kind in volume for kind in _KINDS):
                kinds = ", ".join(key for key in volume if key != "name")
                raise InvalidError(f"volume {volume['name']}: there is no {kinds or 'such volume'} here")
        for container in containers:
            for mount in container.get("volumeMounts", ()):
                if mount.get("subPath") or mount.get("subPathExpr"):
                    raise InvalidError(f"container {container['name']}: there is no subPath here")
                if mount["name"] not in names:
                    raise InvalidError(f"container {container['name']}: no volume named {mount['name']}")

    async def refresh(self, pod: Object, now: float) -> None:
        """Makes and fills all of them as the world is now (unix seconds). MissingError while something that
        must be there is not; what was filled before stays."""
        for volume in self._declared:
            folder = self._folder / volume["name"]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if "emptyDir" not in volume:
                await anyio.to_thread.run_sync(_fill, folder, await self._files(volume, pod, now))

    def token_due(self, now: float) -> bool:
        """Whether a token wants another in its place."""
        return any(now >= renew_at for renew_at, _ in self._tokens.values())

    def mounts(self, container: Object) -> Mapping[str, Path]:
        """Where each mountPath of the container really is."""
        return {
            mount["mountPath"].rstrip("/"): self._folder / mount["name"]
            for mount in container.get("volumeMounts", ())
        }

    async def _files(self, volume: Object, pod: Object, now: float) -> Files:
        if "projected" not in volume:
            kind = next(kind for kind in _KINDS if kind in volume)
            name = volume[kind].get("secretName") or volume[kind].get("name", "")
            return await self._source(volume["name"], {kind: {**volume[kind], "name": name}}, pod, now)
        files: Files = {}
        for source in volume["projected"].get("sources", ()):
            files |= await self._source(volume["name"], source, pod, now)
        return files

    async def _source(self, volume: str, source: Object, pod: Object, now: float) -> Files:
        kind, declared = next(iter(source.items()))
        namespace, optional = pod["metadata"]["namespace"], declared.get("optional", False)
        mode = declared.get("defaultMode", _PUBLIC)
        if kind == "configMap":
            data = await self._inputs.config_map(namespace, declared["name"], optional=optional)
            return _chosen(data, declared, mode)
        if kind == "secret":
            data = await self._inputs.secret(namespace, declared["name"], optional=optional)
            return _chosen(data, declared, _PRIVATE)
        if kind == "downwardAPI":
            return {
                _safe(item["path"]): File(field_of(pod, item["fieldRef"]["fieldPath"]).encode(), mode)
                for item in declared.get("items", ())
            }
        if kind == "serviceAccountToken":
            token = await self._token(volume, declared, pod, now)
            return {_safe(declared["path"]): File(token, _PRIVATE)}
        raise InvalidError(f"volume {volume}: there is no {kind} here")

    async def _token(self, volume: str, declared: Object, pod: Object, now: float) -> bytes:
        key = volume, declared["path"]
        renew_at, token = self._tokens.get(key, (0.0, b""))
        if now >= renew_at:
            seconds = declared.get("expirationSeconds", _TOKEN_SECONDS)
            token = await self._inputs.token(pod, declared.get("audience", ""), seconds)
            self._tokens[key] = now + _TOKEN_LIFE * seconds, token
        return token


def translated(text: str, mounts: Mapping[str, Path]) -> str:
    """`text`, or where it really is if it is a path at or under a mountPath; the longest one counts."""
    for mount in sorted(mounts, key=len, reverse=True):
        if text == mount or text.startswith(mount + "/"):
            return str(mounts[mount]) + text[len(mount) :]
    return text


def _chosen(data: Mapping[str, bytes], declared: Object, mode: int) -> Files:
    items = declared.get("items")
    if items is None:
        return {_safe(key): File(content, mode) for key, content in data.items()}
    return {_safe(item["path"]): File(data[item["key"]], mode) for item in items if item["key"] in data}


def _safe(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or _CONTROL.search(path):
        raise InvalidError(f"{path[:_SHOWN]!r} is no path inside a volume")
    return str(pure)


def _fill(folder: Path, files: Files) -> None:
    for path, file in files.items():
        target = folder / path
        if _read(target) == file.content:
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.new")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode)
        with open(handle, "wb") as stream:
            stream.write(file.content)
        beside.replace(target)
    for left in [each for each in folder.rglob("*") if each.is_file()]:
        if str(left.relative_to(folder)) not in files:
            left.unlink()


def _read(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None
