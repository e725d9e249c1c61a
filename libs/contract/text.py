"""Text from models and tools, made fit for the wire."""

from __future__ import annotations


def clean(text: str) -> str:
    """The text with `?` for what UTF-8 cannot say: JSON can name half of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def head(text: str, most: int) -> str:
    """As much of its beginning, made fit, as so many bytes of UTF-8 hold."""
    if text.isascii():
        return text[:most]
    return clean(text).encode()[:most].decode("utf-8", "ignore")
