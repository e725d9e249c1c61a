"""Image references and patterns of them. Both are read into their parts: nothing is compared as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_DOCKER = "docker.io"
_LONGEST = 512
_HOST = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_REPOSITORY = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_REPOSITORY}(?:/{_REPOSITORY})*)"
    r"(?::(?P<tag>\w[-\w.]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_PATTERN = re.compile(
    r"(?P<name>[^\s@]+?)(?::(?P<tag>[-\w.*]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}|\*))?", re.ASCII
)
_PATTERN_PART = re.compile(r"\*\*|[a-z0-9*][a-z0-9._*-]*", re.ASCII)
_PATTERN_HOST = re.compile(r"(?:[A-Za-z0-9*][-A-Za-z0-9.*]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Image:
    """Where an image is. With a digest, the tag says nothing about what is pulled."""

    registry: str
    """Its host in lower case, perhaps with a port."""
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def is_floating(self) -> bool:
        """Whether it means another image tomorrow: no digest, and no tag but latest."""
        return not self.digest and self.tag in ("", "latest")


def parsed(text: str) -> Image:
    """The image that a reference means. Without a registry it is of docker.io, and there without a folder one
    of library. ValueError."""
    match = _IMAGE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError("is no image reference")
    registry, repository = _split(match["name"])
    return Image(registry, repository, match["tag"] or "", match["digest"] or "")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which images are meant: registry and repository have to fit, and tag and digest where it says them.

    `*` is any text within one part of a host or a repository, and in a tag; `**` is one or more whole parts
    of a repository. A digest wins over a tag, so a pattern with a tag means no image with a digest unless it
    ends with `@*`.
    """

    registry: re.Pattern[str]
    repository: re.Pattern[str]
    tag: re.Pattern[str] | None
    digest: str

    def allows(self, image: Image) -> bool:
        """Whether it is one of those."""
        if not (self.registry.fullmatch(image.registry) and self.repository.fullmatch(image.repository)):
            return False
        if self.digest and self.digest != "*":
            return image.digest == self.digest and self._has_tag(image)
        if self.digest == "*" and not image.digest:
            return False
        return self.tag is None or ((self.digest == "*" or not image.digest) and self._has_tag(image))

    def _has_tag(self, image: Image) -> bool:
        tag = image.tag or ("" if image.digest else "latest")
        return self.tag is None or self.tag.fullmatch(tag) is not None


@cache
def pattern(text: str) -> Pattern:
    """What a pattern such as ghcr.io/acme/** means. ValueError."""
    match = _PATTERN.fullmatch(text)
    registry, repository = _split(match["name"]) if match else ("", "")
    parts = repository.split("/")
    if (
        match is None
        or not _PATTERN_HOST.fullmatch(registry)
        or not all(_PATTERN_PART.fullmatch(part) for part in parts)
        or any("**" in part and part != "**" for part in parts)
        or (registry == _DOCKER and match["name"].startswith("*"))  # meant as a registry, and is none
    ):
        raise ValueError(
            f"{text!r} is no image pattern, such as ghcr.io/acme/** or docker.io/library/python:3.*"
        )
    wild = [".*" if part == "**" else _glob(part, "[^/]*") for part in parts]
    return Pattern(
        re.compile(_glob(registry, "[^.:/]*")),
        re.compile("/".join(wild)),
        re.compile(_glob(match["tag"], ".*")) if match["tag"] else None,
        match["digest"] or "",
    )


def _split(name: str) -> tuple[str, str]:
    """(registry, repository), by the rules of the docker command."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or first.lower() != first or set(first) & set(".:[")):
        registry, repository = first.lower(), rest
    else:
        registry, repository = _DOCKER, name
    registry = _DOCKER if registry == f"index.{_DOCKER}" else registry
    if registry == _DOCKER and "/" not in repository and repository != "**":
        repository = f"library/{repository}"
    return registry, repository


def _glob(text: str, star: str) -> str:
    return star.join(map(re.escape, text.split("*")))
