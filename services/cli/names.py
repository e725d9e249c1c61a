"""Names as coordination takes them, checked before anything is asked of it."""

from __future__ import annotations

import re

import typer

from libs.identity import LABEL

_QUEUE = re.compile(rf"{LABEL}/[a-z0-9](?:[a-z0-9.-]{{0,198}}[a-z0-9])?")


def queue(text: str) -> str:
    """The name of a queue. ValueError says what is allowed."""
    if not _QUEUE.fullmatch(text):
        raise ValueError(f"{text!r} is not a queue: write it as namespace/name, in lower case")
    return text


def queue_option(text: str) -> str:
    """`queue` for the command line: what is wrong is a usage error."""
    try:
        return queue(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
