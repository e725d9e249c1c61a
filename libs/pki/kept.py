"""A keyring as text, as a Secret keeps it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from cryptography import x509

from libs.identity import TrustClass

from .certificates import key_of, pem, private_pem
from .keyring import Generation, Keyring, Terms


def dump(ring: Keyring) -> str:
    """JSON, keys and all."""
    lines = {
        each.value: [_dump(generation) for generation in line] for each, line in ring.intermediates.items()
    }
    roots = [_dump(generation) for generation in ring.roots]
    return json.dumps({"domain": ring.domain, "root": roots, **lines}, indent=1)


def load(text: str, terms: Terms = Terms()) -> Keyring:  # noqa: B008  (frozen)
    """The keyring that `dump` wrote. ValueError if it is not all there."""
    try:
        document = json.loads(text)
        lines = {each: tuple(map(_load, document[each.value])) for each in TrustClass}
        ring = Keyring(document["domain"], tuple(map(_load, document["root"])), lines, terms)
    except (LookupError, TypeError) as error:
        raise ValueError(f"not a keyring: {error!r}") from error
    if not ring.roots or not all(lines.values()):
        raise ValueError("not a keyring: a line of it is empty")
    return ring


def _dump(generation: Generation) -> dict[str, str]:
    document = {
        "certificate": pem(generation.certificate).decode(),
        "key": private_pem(generation.key).decode(),
        "signsFrom": generation.signs_from.isoformat(),
    }
    return document | ({"ends": generation.ends.isoformat()} if generation.ends else {})


def _load(document: dict[str, Any]) -> Generation:
    certificate = x509.load_pem_x509_certificate(document["certificate"].encode())
    ends = document.get("ends")
    return Generation(
        certificate,
        key_of(document["key"].encode(), certificate, "a key of the keyring"),
        datetime.fromisoformat(document["signsFrom"]),
        datetime.fromisoformat(ends) if ends else None,
    )
