"""The example fleet, and work for it."""

from __future__ import annotations

from typing import Any

import yaml

from .kubectl import ROOT

DOCUMENTS = sorted((ROOT / "examples" / "documents").iterdir())[:12]


def fleet(namespace: str) -> list[dict[str, Any]]:
    """The example's objects, in a namespace of the test's own."""
    text = (ROOT / "examples" / "summarize.yaml").read_text()
    things = [thing for thing in yaml.safe_load_all(text) if thing["kind"] != "Namespace"]
    for thing in things:
        thing["metadata"]["namespace"] = namespace
    return things
