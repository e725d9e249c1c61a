"""Images and patterns of them."""

from __future__ import annotations

import pytest

from services.admission.context import Policy
from services.admission.images import Image, parsed, pattern

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("python", Image("docker.io", "library/python")),
        ("python:3.12", Image("docker.io", "library/python", "3.12")),
        ("acme/agent", Image("docker.io", "acme/agent")),
        ("index.docker.io/python", Image("docker.io", "library/python")),
        ("docker.io/python", Image("docker.io", "library/python")),
        ("localhost/agent", Image("localhost", "agent")),
        ("localhost:5000/a/b:1", Image("localhost:5000", "a/b", "1")),
        ("[::1]:5000/a", Image("[::1]:5000", "a")),
        ("GHCR.io/acme/agent", Image("ghcr.io", "acme/agent")),
        (f"ghcr.io/acme/agent@{DIGEST}", Image("ghcr.io", "acme/agent", "", DIGEST)),
        (f"ghcr.io/acme/agent:1@{DIGEST}", Image("ghcr.io", "acme/agent", "1", DIGEST)),
        ("agent:5000", Image("docker.io", "library/agent", "5000")),
    ],
)
def test_a_reference_is_read_as_docker_reads_it(text, image):
    assert parsed(text) == image


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "ghcr.io/",
        "/a",
        "a:",
        "a@sha256:12",
        "a\n",
        "a//b",
        "a..b",
        "a___b",
        "a._b",
        "ghcr.io/A",
        "https://ghcr.io/a",
        "a" * 513,
    ],
)
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ValueError, match="no image reference"):
        parsed(text)


@pytest.mark.parametrize(
    ("allowed", "fit", "others"),
    [
        (
            "ghcr.io/acme/**",
            ["ghcr.io/acme/a", "ghcr.io/acme/a/b:1", f"GHCR.IO/acme/a@{DIGEST}"],
            [
                "ghcr.io/acme-evil/a",
                "ghcr.io/acme",
                "ghcr.io/other/acme/a",
                "ghcr.io.evil.example/acme/a",
                "ghcr.io:444/acme/a",
                "evil.example/ghcr.io/acme/a",
                "acme/a",
            ],
        ),
        ("ghcr.io/acme/*", ["ghcr.io/acme/a"], ["ghcr.io/acme/a/b"]),
        ("ghcr.io/acme/agent-*", ["ghcr.io/acme/agent-a"], ["ghcr.io/acme/agent", "ghcr.io/acme/x-agent-a"]),
        ("ghcr.io/**/agent", ["ghcr.io/a/agent", "ghcr.io/a/b/agent"], ["ghcr.io/agent", "ghcr.io/a/agents"]),
        ("ghcr.io/**", ["ghcr.io/a", "ghcr.io/a/b"], ["a/b"]),
        (
            "docker.io/library/python:3.*",
            ["python:3.12", "docker.io/library/python:3.1-slim"],
            [
                "python",
                "python:2.7",
                "python:31",
                "acme/python:3.12",
                f"python:3.12@{DIGEST}",
                f"python@{DIGEST}",
            ],
        ),
        ("python", ["python", "python:2", f"python@{DIGEST}"], ["acme/python", "python3"]),
        ("python:latest", ["python", "python:latest"], ["python:3"]),
        (
            "python:3.*@*",
            [f"python:3.12@{DIGEST}"],
            ["python:3.12", f"python:2@{DIGEST}", f"python@{DIGEST}"],
        ),
        (
            f"python@{DIGEST}",
            [f"python@{DIGEST}", f"python:3@{DIGEST}"],
            ["python", f"python@{DIGEST[:-1]}1"],
        ),
        ("ghcr.io/acme/**@*", [f"ghcr.io/acme/a@{DIGEST}"], ["ghcr.io/acme/a:1"]),
        ("localhost:5000/**", ["localhost:5000/a"], ["localhost/a", "localhost:5001/a"]),
        (
            "*.example.com/**",
            ["eu.example.com/a"],
            ["a.b.example.com/a", "example.com/a", "euxexample.com/a"],
        ),
    ],
)
def test_a_pattern_means_what_fits_in_its_parts(allowed, fit, others):
    means = pattern(allowed).allows
    assert [text for text in fit if not means(parsed(text))] == []
    assert [text for text in others if means(parsed(text))] == []


@pytest.mark.parametrize(
    "text", ["", "*", "**", "*/acme", "ghcr.io/", "ghcr.io/a**", "ghcr.io/a:", "a b", "A", "a@md5:1"]
)
def test_what_is_no_pattern_is_refused_with_the_settings(text):
    with pytest.raises(ValueError, match="no image pattern"):
        Policy(allowed_images=[text])


def test_only_a_tag_or_a_digest_pins():
    floating = {
        text: parsed(text).is_floating
        for text in ("a", "a:latest", "a:1", f"a@{DIGEST}", f"a:latest@{DIGEST}")
    }
    assert list(floating.values()) == [True, True, False, False, False]
