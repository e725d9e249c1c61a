"""The SQLite file of the local home: objects, who named which field, and the changes of late.

Everything here is synchronous: one operation takes tens of microseconds, less than handing it to a thread.
The log is in WAL mode with synchronous=NORMAL: a commit is in the kernel when it returns, so a killed process
loses nothing. A power cut may lose the commits that the kernel had not written yet (up to about half a
minute); it never tears the file. An fsync for each commit would cost more than all the rest.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from libs.cluster import ExpiredError, Object
from libs.cluster.kinds import Kind
from libs.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError

from . import merge
from .metadata import shown

HISTORY = 10_000
"""Changes that are kept for those who resume a watch, at most."""
HISTORY_BYTES = 64 * 2**20
OBJECT_BYTES = 3 * 2**19
"""An object may have as much, as in etcd."""
_PAGE = 200
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    uid TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name));
CREATE INDEX objects_by_age ON objects (kind, revision);
CREATE INDEX objects_by_namespace ON objects (namespace);
CREATE TABLE owners (uid TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (uid, owner)) WITHOUT ROWID;
CREATE INDEX owners_by_owner ON owners (owner);
CREATE TABLE fields (
    uid TEXT NOT NULL, manager TEXT NOT NULL, subresource TEXT NOT NULL, paths TEXT NOT NULL,
    PRIMARY KEY (uid, manager, subresource));
CREATE TABLE changes (
    revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL,
    type TEXT NOT NULL, labels_before TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX changes_by_kind ON changes (kind, revision);
CREATE TABLE counter (revision INTEGER NOT NULL);
INSERT INTO counter VALUES (1);
PRAGMA user_version = {_VERSION};
"""

Owner = tuple[str, str]
"""Who named fields: (manager, subresource)."""
_PATHS = msgspec.json.Decoder(frozenset[tuple[str | tuple[str | int, ...], ...]])


@dataclass(frozen=True, slots=True)
class Recorded:
    """One change of the log. `labels_before` are those of the object before it, None if it was made then."""

    revision: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    labels_before: dict[str, str] | None
    object: Object


class Store:
    """Objects with revisions. Every write belongs into a `transaction`."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._prepare(path)
        self.revision: int = self._db.execute("SELECT revision FROM counter").fetchone()[0]
        self._history = self._db.execute("SELECT count(*), total(length(body)) FROM changes").fetchone()
        oldest = self._db.execute("SELECT min(revision) FROM changes").fetchone()[0]
        self._forgotten = dict[str, int]()  # by kind: the newest change that the log has no more
        self._forgotten_by_all: int = (oldest or self.revision + 1) - 1
        self._news = dict[str, asyncio.Event]()
        self._touched = set[str]()
        self.closed = False

    def _prepare(self, path: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        elif version != _VERSION:
            self._db.close()
            raise PreconditionError(f"{path} has schema {version}, this program has {_VERSION}")

    def close(self) -> None:
        """Ends all who wait for news."""
        self.closed = True
        for event in self._news.values():
            event.set()
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it, or on an error nothing. UnavailableError when the disk refuses. Not to be nested."""
        before, history, is_done = self.revision, self._history, False
        try:
            self._run("BEGIN IMMEDIATE")
            yield
            self._run("UPDATE counter SET revision = ?", (self.revision,))
            self._run("COMMIT")
            is_done = True
        finally:
            touched, self._touched = self._touched, set()
            if not is_done:
                self.revision, self._history = before, history
                if self._db.in_transaction:  # SQLite itself has gone back when the disk is full
                    self._db.execute("ROLLBACK")
        for kind in touched:
            if event := self._news.pop(kind, None):
                event.set()

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.closed:
            raise UnavailableError("the object store is closed")
        try:
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"the object store: {error}") from error
        except UnicodeEncodeError as error:
            raise InvalidError(f"no text that can be kept: {error}") from error

    async def news(self, kind: Kind) -> None:
        """Until the next commit that changes an object of that kind, or `close`."""
        if not self.closed:
            await self._news.setdefault(kind.resource, asyncio.Event()).wait()

    def read(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object. NotFoundError."""
        row = self._run(
            "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?",
            (kind.resource, namespace, name),
        ).fetchone()
        if row is None:
            raise NotFoundError(f'{kind.resource} "{shown(name)}" not found')
        return _object(row[0])

    def by_uid(self, uid: str) -> Object | None:
        """The object with that uid, if it is there."""
        row = self._run("SELECT body FROM objects WHERE uid = ?", (uid,)).fetchone()
        return _object(row[0]) if row else None

    def all(self, kind: Kind, namespace: str = "") -> Iterator[Object]:
        """All of a kind, in order of namespace and name."""
        rows = self._run(
            "SELECT body FROM objects WHERE kind = ?1 AND (?2 = '' OR namespace = ?2)"
            " ORDER BY namespace, name",
            (kind.resource, namespace),
        )
        return (_object(body) for (body,) in rows.fetchall())

    def is_empty(self, namespace: str) -> bool:
        """Whether nothing is in a namespace."""
        row = self._run("SELECT 1 FROM objects WHERE namespace = ? LIMIT 1", (namespace,)).fetchone()
        return row is None

    def within(self, namespace: str) -> list[Object]:
        """Every object of a namespace."""
        rows = self._run("SELECT body FROM objects WHERE namespace = ?", (namespace,)).fetchall()
        return [_object(body) for (body,) in rows]

    def count(self, kind: Kind) -> int:
        """How many objects of a kind there are."""
        row = self._run("SELECT count(*) FROM objects WHERE kind = ?", (kind.resource,)).fetchone()
        return int(row[0])

    def oldest(self, kind: Kind, limit: int) -> list[Object]:
        """The objects of a kind that were written longest ago, at most so many."""
        rows = self._run(
            "SELECT body FROM objects WHERE kind = ? ORDER BY revision LIMIT ?", (kind.resource, limit)
        ).fetchall()
        return [_object(body) for (body,) in rows]

    def dependents(self, owner: str) -> list[Object]:
        """The objects that name this uid as an owner."""
        rows = self._run(
            "SELECT body FROM owners JOIN objects USING (uid) WHERE owner = ?", (owner,)
        ).fetchall()
        return [_object(body) for (body,) in rows]

    def write(self, kind: Kind, thing: Object, before: Object | None) -> Object:
        """Stores it as the next revision, which `thing` is given."""
        metadata = thing["metadata"]
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        body, uid = _text(thing), metadata["uid"]
        if len(body) > OBJECT_BYTES:
            raise InvalidError(f"an object may have {OBJECT_BYTES} bytes, this one has {len(body)}")
        self._run(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (kind, namespace, name) DO UPDATE"
            " SET uid = excluded.uid, revision = excluded.revision, body = excluded.body",
            (kind.resource, metadata.get("namespace", ""), metadata["name"], uid, self.revision, body),
        )
        owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
        if before is None or owners != {
            owner["uid"] for owner in before["metadata"].get("ownerReferences", ())
        }:
            self._run("DELETE FROM owners WHERE uid = ?", (uid,))
            for owner in owners:
                self._run("INSERT INTO owners VALUES (?, ?)", (uid, owner))
        labels = None if before is None else before["metadata"].get("labels", {})
        self._record(kind, thing, "MODIFIED" if before else "ADDED", labels, body)
        return thing

    def erase(self, kind: Kind, thing: Object) -> None:
        """Removes it, as the next revision."""
        self.revision += 1
        metadata = thing["metadata"] | {"resourceVersion": str(self.revision)}
        last = thing | {"metadata": metadata}
        for table in ("objects", "owners", "fields"):
            self._run(f"DELETE FROM {table} WHERE uid = ?", (metadata["uid"],))
        self._record(kind, last, "DELETED", metadata.get("labels", {}), _text(last))

    def _record(
        self, kind: Kind, thing: Object, type_: str, labels: dict[str, str] | None, body: str
    ) -> None:
        namespace = thing["metadata"].get("namespace", "")
        self._run(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)",
            (self.revision, kind.resource, namespace, type_, _text(labels), body),
        )
        self._touched.add(kind.resource)
        self._history = self._history[0] + 1, self._history[1] + len(body)
        while self._history[0] > HISTORY or self._history[1] > HISTORY_BYTES:
            self._forget()

    def _forget(self) -> None:
        """Drops the oldest change."""
        oldest = "SELECT revision, kind, length(body) FROM changes ORDER BY revision LIMIT 1"
        revision, kind, size = self._run(oldest).fetchone()
        self._run("DELETE FROM changes WHERE revision = ?", (revision,))
        self._forgotten[kind] = revision
        self._history = self._history[0] - 1, self._history[1] - size

    def changes(self, kind: Kind, namespace: str, since: int) -> list[Recorded]:
        """The next changes of a kind after that revision, a page of them. ExpiredError."""
        if not max(self._forgotten_by_all, self._forgotten.get(kind.resource, 0)) <= since <= self.revision:
            raise ExpiredError(f"the changes of {kind.resource} after revision {since} are not kept")
        rows = self._run(
            "SELECT revision, type, labels_before, body FROM changes"
            " WHERE kind = ?1 AND revision > ?2 AND (?3 = '' OR namespace = ?3) ORDER BY revision LIMIT ?4",
            (kind.resource, since, namespace, _PAGE),
        ).fetchall()
        return [
            Recorded(revision, type_, msgspec.json.decode(labels), _object(body))
            for revision, type_, labels, body in rows
        ]

    def fields(self, uid: str) -> dict[Owner, merge.Fields]:
        """Who named which fields of an object."""
        rows = self._run("SELECT manager, subresource, paths FROM fields WHERE uid = ?", (uid,))
        return {(manager, subresource): _PATHS.decode(paths) for manager, subresource, paths in rows}

    def name(self, uid: str, owner: Owner, paths: merge.Fields) -> None:
        """From now on this owner has named these fields, and no others."""
        if not paths:
            self._run("DELETE FROM fields WHERE uid = ? AND manager = ? AND subresource = ?", (uid, *owner))
            return
        self._run(
            "INSERT INTO fields VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET paths = excluded.paths",
            (uid, *owner, _text(list(paths))),
        )


def _text(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidError(f"no number or text that can be kept: {error}") from error


def _object(body: str) -> Object:
    thing: Object = msgspec.json.decode(body)
    return thing
