"""What `work submit` reads: files, JSON lines and plain lines become work. Refuses; never guesses.

All input is read and checked before anything is submitted: a mistake in the last line changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from libs.errors import InvalidError
from libs.work import Backoff, Work

from .choices import Dedupe
from .durations import duration, of_seconds
from .output import FailedError

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_PAYLOADS = ("payload", "payload_json", "payload_base64")


def from_files(paths: Iterable[Path]) -> list[Work]:
    """One item a file, labelled with its name."""
    return [_from_file(path) for path in paths]


def from_lines(lines: Iterable[bytes]) -> list[Work]:
    """One item a line that is not blank."""
    return [
        _checked(Work(line.rstrip(b"\r\n"), content_type="text/plain"), f"line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def from_jsonl(lines: Iterable[bytes], source: str) -> list[Work]:
    """One item a JSON object a line; blank lines are skipped. Errors name the line and the field."""
    works = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        try:
            work = _checked(_from_entry(json.loads(line, object_pairs_hook=_unique)), where)
        except json.JSONDecodeError as error:
            raise FailedError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
        except (ValueError, RecursionError) as error:
            raise FailedError(f"{where}: {error}") from error
        if (first := lines_of.setdefault(work.id, number)) != number:
            raise FailedError(f"{where}: id: {work.id} is that of line {first} already")
        works.append(work)
    return works


def completed(
    work: Work, group: str, labels: Mapping[str, str], by: Dedupe | None, shard_key: str = ""
) -> Work:
    """The work with what the command line adds; what the work says itself stays."""
    whole = replace(
        work,
        group=work.group or group,
        shard_key=work.shard_key or shard_key,
        labels={**labels, **work.labels},
    )
    if by and not work.dedupe_key:
        whole = replace(whole, dedupe_key=_dedupe_key(work, by))
    return _checked(whole, work.labels.get("file") or f"item {work.id}")


def labels(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` pairs of the command line."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise FailedError(f"--label {pair}: write it as key=value")
        found[key] = value
    return found


def _dedupe_key(work: Work, by: Dedupe) -> str:
    if by is Dedupe.CONTENT:
        return "sha256:" + hashlib.sha256(work.payload).hexdigest()
    if "file" not in work.labels:
        raise FailedError("--dedupe name: only files have names; use --dedupe content")
    return work.labels["file"]


def _from_file(path: Path) -> Work:
    if path.is_dir():
        raise FailedError(f"{path}: a folder; name its files, for example {path}/*")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _checked(Work(path.read_bytes(), content_type=kind, labels={"file": path.name}), str(path))


def _checked(work: Work, where: str) -> Work:
    try:
        work.to_pb()
    except InvalidError as error:
        raise FailedError(f"{where}: {error}") from error
    return work


def _from_entry(entry: object) -> Work:
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    given = [name for name in _PAYLOADS if name in entry]
    if len(given) != 1:
        raise ValueError(f"payload: exactly one of {', '.join(_PAYLOADS)}")
    return Work(**_payload(given[0], entry.pop(given[0])), **_read(entry, _FIELDS, ""))


def _payload(name: str, value: object) -> dict[str, Any]:
    match name:
        case "payload_json":
            try:
                plain = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            except ValueError as error:
                raise ValueError(f"{name}: JSON has no NaN and no Infinity") from error
            return {"payload": plain.encode()}
        case "payload_base64":
            try:
                return {"payload": base64.b64decode(_text(name, value), validate=True)}
            except binascii.Error as error:
                raise ValueError(f"{name}: {error}") from error
        case _:
            return {"payload": _text(name, value).encode()}


def _read(
    entry: Mapping[str, object], readers: Mapping[str, Callable[[str, object], Any]], prefix: str
) -> dict[str, Any]:
    for name in entry:
        if name not in readers:
            known = (*_PAYLOADS, *readers) if readers is _FIELDS else tuple(readers)
            raise ValueError(f"{prefix}{name}: no such field; there are {', '.join(known)}")
    return {name: readers[name](f"{prefix}{name}", value) for name, value in entry.items()}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: a string")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{name}: Unicode text, not half of a surrogate pair")
    return value


def _id(name: str, value: object) -> str:
    if not _UUID.fullmatch(text := _text(name, value)):
        raise ValueError(f"{name}: a UUID in lower-case text form, or leave it out")
    return text


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name}: a whole number")
    return value


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name}: a number")
    return float(value)


def _duration(name: str, value: object) -> timedelta:
    try:
        return duration(value) if isinstance(value, str) else of_seconds(_number(name, value))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: a duration such as 30s, or a number of seconds") from error


def _labels(name: str, value: object) -> dict[str, str]:
    return {key: _text(f"{name}.{key}", each) for key, each in _mapping(name, value).items()}


def _backoff(name: str, value: object) -> Backoff:
    readers = {"initial": _duration, "maximum": _duration, "multiplier": _number}
    return Backoff(**_read(_mapping(name, value), readers, f"{name}."))


def _mapping(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]}: twice in one object")
    return dict(pairs)


_FIELDS: Mapping[str, Callable[[str, object], Any]] = {
    "id": _id,
    "content_type": _text,
    "dedupe_key": _text,
    "priority": _whole,
    "delay": _duration,
    "expires_in": _duration,
    "max_attempts": _whole,
    "backoff": _backoff,
    "group": _text,
    "ordering_key": _text,
    "shard_key": _text,
    "labels": _labels,
}
