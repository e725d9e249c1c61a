"""What servers answer, as text for the model. Pure; nothing is dropped unsaid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, TextResourceContents

from .tool import Result


def result_of(answer: CallToolResult) -> Result:
    """A tool's result; if there is no text, its structured content as JSON."""
    said = [_block(each) for each in answer.content]
    if not any(each.type == "text" for each in answer.content) and answer.structured_content is not None:
        said.append(json.dumps(answer.structured_content, ensure_ascii=False))
    text = "\n".join(said) or "(no content)"
    return Result(f"error: {text}", "error") if answer.is_error else Result(text)


def reading_of(contents: Sequence[TextResourceContents | BlobResourceContents]) -> tuple[str, str]:
    """A resource's text, and a digest that is the same as long as all of it is, also what is no text."""
    digest = sha256()
    for each in contents:
        body = each.text if hasattr(each, "text") else each.blob
        for part in (str(each.uri), each.mime_type or "", body):
            digest.update(f"{len(part)}:".encode() + part.encode(errors="replace"))
    return "\n".join(_contents(each) for each in contents), digest.hexdigest()


def _block(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {len(block.data)} characters of base64, not shown]"
        case "resource_link":
            return f"[link to {block.uri}: {block.description or block.name}]"
        case "resource":
            return f"[{block.resource.uri}]\n{_contents(block.resource)}"
    return f"[content of an unknown kind: {block.type}]"


def _contents(contents: TextResourceContents | BlobResourceContents) -> str:
    if hasattr(contents, "text"):
        return contents.text
    return f"[{contents.mime_type or 'binary'}, {len(contents.blob)} characters of base64, not shown]"
