"""Deletion: finalizers, owners and what they own, namespaces with what is in them.

Every function runs inside the transaction of the write that causes it, so nothing is ever half deleted and no
collector has to run later. Kinds of deletion, their finalizer and their rules are those of the API server.
"""

from __future__ import annotations

import copy
from datetime import datetime, timedelta

from libs.cluster import Object, Propagation
from libs.cluster.kinds import NAMESPACE, POD, Kind, kind_of
from libs.errors import NotFoundError

from .store import Store

FOREGROUND = "foregroundDeletion"
_GRACE_SECONDS = 30


class Collector:
    """Deletes from one store. `now` is an RFC 3339 time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def delete(self, thing: Object, propagation: Propagation, now: str) -> None:
        """Removes it with what it owns, or marks it and leaves it until its finalizers are gone. One that is
        marked already stays as it is."""
        if "deletionTimestamp" in thing["metadata"]:
            return
        kind, uid = _kind(thing), thing["metadata"]["uid"]
        dependents = self._store.dependents(uid)
        if propagation == "Orphan":
            for dependent in dependents:
                self._disown(dependent, uid)
        marked = copy.deepcopy(thing)
        metadata = marked["metadata"]
        metadata |= _deadline(kind, thing, now)
        if "generation" in metadata:
            metadata["generation"] += 1
        if propagation == "Foreground" and any(_blocks(dependent, uid) for dependent in dependents):
            metadata.setdefault("finalizers", []).append(FOREGROUND)
            if any(_waits(dependent) for dependent in dependents):
                # they wait for each other, in a ring: this one lets go
                for reference in metadata.get("ownerReferences", ()):
                    reference["blockOwnerDeletion"] = False
        if kind == NAMESPACE:
            marked["status"] = {"phase": "Terminating"}
        if not self._stays(marked):
            self._remove(thing, now)
            return
        self._store.write(kind, marked, thing)
        if propagation == "Foreground":
            self._delete_all(dependents, "Foreground", now)
            for reference in metadata.get("ownerReferences", ()):
                self._settle_owner(reference["uid"], now)
        if kind == NAMESPACE:
            self._delete_all(self._store.within(metadata["name"]), "Background", now)
            self._settle_namespace(metadata["name"], now)

    def settle(self, thing: Object, now: str) -> None:
        """After a write: removes it if it is marked and nothing holds it, or none of its owners is there."""
        if "deletionTimestamp" in thing["metadata"]:
            if not self._stays(thing):
                self._remove(thing, now)
        elif thing["metadata"].get("ownerReferences") and not self._is_owned(thing):
            self.delete(thing, "Background", now)

    def let_go(self, before: Object, after: Object, now: str) -> None:
        """After a change: owners that waited for this to go, and that it names no more, wait no longer."""
        references = before["metadata"].get("ownerReferences", ())
        if references and references != after["metadata"].get("ownerReferences"):
            for reference in references:
                self._settle_owner(reference["uid"], now)

    def _stays(self, marked: Object) -> bool:
        metadata = marked["metadata"]
        if _kind(marked) == NAMESPACE and not self._store.is_empty(metadata["name"]):
            return True
        return bool(metadata.get("finalizers"))

    def _remove(self, thing: Object, now: str) -> None:
        uid = thing["metadata"]["uid"]
        self._store.erase(_kind(thing), thing)
        for dependent in self._store.dependents(uid):
            current = self._store.by_uid(dependent["metadata"]["uid"])
            if current is None:
                continue  # one before took it along
            if self._is_owned(current):
                self._disown(current, uid)
            else:
                self.delete(current, "Background", now)
        for reference in thing["metadata"].get("ownerReferences", ()):
            self._settle_owner(reference["uid"], now)
        if namespace := thing["metadata"].get("namespace"):
            self._settle_namespace(namespace, now)

    def _delete_all(self, things: list[Object], propagation: Propagation, now: str) -> None:
        for thing in things:
            # one before may have taken it along, or changed it
            if current := self._store.by_uid(thing["metadata"]["uid"]):
                self.delete(current, propagation, now)

    def _settle_owner(self, uid: str, now: str) -> None:
        owner = self._store.by_uid(uid)
        if owner is None or not _waits(owner):
            return
        if not any(_blocks(dependent, uid) for dependent in self._store.dependents(uid)):
            freed = copy.deepcopy(owner)
            freed["metadata"]["finalizers"].remove(FOREGROUND)
            self._store.write(_kind(owner), freed, owner)
            self.settle(freed, now)

    def _settle_namespace(self, name: str, now: str) -> None:
        try:
            namespace = self._store.read(NAMESPACE, "", name)
        except NotFoundError:
            return
        if "deletionTimestamp" in namespace["metadata"] and not self._stays(namespace):
            self._remove(namespace, now)

    def _is_owned(self, thing: Object) -> bool:
        """Whether an owner is there that is not itself waiting for this to go."""
        owners = (self._store.by_uid(reference["uid"]) for reference in thing["metadata"]["ownerReferences"])
        return any(owner is not None and not _waits(owner) for owner in owners)

    def _disown(self, thing: Object, uid: str) -> None:
        freed = copy.deepcopy(thing)
        references = freed["metadata"].pop("ownerReferences")
        if others := [reference for reference in references if reference["uid"] != uid]:
            freed["metadata"]["ownerReferences"] = others
        self._store.write(_kind(thing), freed, thing)


def _kind(thing: Object) -> Kind:
    return kind_of(thing["apiVersion"], thing["kind"])


def _deadline(kind: Kind, thing: Object, now: str) -> Object:
    """What the metadata of a marked object says: a pod's, when its grace is over."""
    if kind != POD or thing.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return {"deletionTimestamp": now}
    grace = thing["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS)
    end = datetime.fromisoformat(now) + timedelta(seconds=grace)
    return {"deletionTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": grace}


def _waits(owner: Object) -> bool:
    metadata = owner["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND in metadata.get("finalizers", ())


def _blocks(dependent: Object, uid: str) -> bool:
    references = dependent["metadata"].get("ownerReferences", ())
    return dependent["metadata"]["uid"] != uid and any(
        reference["uid"] == uid and reference.get("blockOwnerDeletion") for reference in references
    )
