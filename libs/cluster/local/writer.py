"""Writing objects: create, apply, replace, delete, each one transaction. Synchronous, as the store is."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from libs.cluster import Object, Propagation
from libs.cluster.kinds import EVENT, NAMESPACE, SERVICE_ACCOUNT, Kind, kind_of
from libs.errors import ConflictError, InvalidError, NotFoundError, PreconditionError

from . import merge, objects
from .access import SYSTEM
from .gc import Collector
from .metadata import shown
from .store import Owner, Store

EVENTS = 1_000
"""Events that are kept: the newest."""
EVENT_SECONDS = 3_600
_DROPPED_AT_ONCE = 10
_UPDATER: Owner = ("", "")  # who named what was created or replaced, not applied
_PROTECTED = ("default", SYSTEM)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words


class Writer:
    """Writes to one store, with the promises of the port. `clock` gives unix seconds."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._collector = Collector(store)

    def create(self, thing: Object) -> Object:
        """As the port says."""
        kind, said = _kind_of(thing), objects.cleaned(thing)
        metadata = said["metadata"]
        if prefix := metadata.pop("generateName", "") if "name" not in metadata else "":
            metadata["name"] = prefix[:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
        document = objects.claims(kind, said, "")
        named = merge.fields(document, merge.Shape(kind))
        with self._store.transaction():
            if self._find(kind, said):
                raise ConflictError(f'{kind.resource} "{shown(metadata["name"])}" already exists')
            made = self._born(kind, document)
            self._add(kind, made, _UPDATER, named)
        return made

    def apply(self, thing: Object, manager: str, subresource: str, *, dry_run: bool) -> Object:
        """As the port says."""
        kind, said = _kind_of(thing), objects.cleaned(thing)
        if not manager:
            raise InvalidError(violations={"manager": "Required value"})
        if subresource not in ("", "status") or (subresource and kind not in objects.WITH_STATUS):
            raise NotFoundError(f"{kind.resource} has no subresource {shown(subresource)!r}")
        document, shape = objects.claims(kind, said, subresource), merge.Shape(kind)
        named, me = merge.fields(document, shape), (manager, subresource)
        with self._store.transaction():
            live = self._find(kind, said)
            _demand(kind, said, live)
            if live is None:
                if subresource:
                    raise _missing(kind, said)
                made = self._born(kind, document)
                if not dry_run:
                    self._add(kind, made, me, named)
                return made
            owners = self._store.fields(live["metadata"]["uid"])
            before = owners.get(me, frozenset[merge.Path]())
            result = merge.merged(live, document, shape)
            if gone := before - named:
                others = [paths for owner, paths in owners.items() if owner != me]
                result = merge.removed(result, gone, named.union(*others), shape)
            result = self._changed(kind, result, live)
            if not dry_run:
                self._own(live, result, owners, (me, named))
                self._change(kind, live, result)
        return result

    def replace(self, thing: Object) -> Object:
        """As the port says. A status is replaced by `apply` alone."""
        kind, said = _kind_of(thing), objects.cleaned(thing)
        shape = merge.Shape(kind)
        with self._store.transaction():
            live = self._find(kind, said)
            if live is None:
                raise _missing(kind, said)
            if said["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
                raise ConflictError(f'{kind.resource} "{said["metadata"]["name"]}": it has been modified')
            _demand(kind, said, live)
            result = self._changed(kind, objects.replaced(kind, said, live), live)
            owners = self._store.fields(live["metadata"]["uid"])
            before = owners.get(_UPDATER, frozenset[merge.Path]())
            mine = merge.fields(objects.claims(kind, result, ""), shape)
            named = (before & mine) | merge.changed(live, result, mine, shape)
            self._own(live, result, owners, (_UPDATER, named))
            self._change(kind, live, result)
        return result

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, propagation: Propagation) -> None:
        """As the port says. PreconditionError for the namespaces that every home has, and for the system
        namespace's ServiceAccounts: without them no component gets a certificate any more."""
        if (kind == NAMESPACE and name in _PROTECTED) or (kind == SERVICE_ACCOUNT and namespace == SYSTEM):
            raise PreconditionError(f'{kind.resource} "{shown(name)}" may not be deleted')
        with self._store.transaction():
            thing = self._store.read(kind, namespace, name)
            if uid and thing["metadata"]["uid"] != uid:
                raise ConflictError(
                    f'{kind.resource} "{name}" has uid {thing["metadata"]["uid"]}, not {shown(uid)}'
                )
            self._collector.delete(thing, propagation, self._now())
            if kind == SERVICE_ACCOUNT and name == "default":
                self._give_account(self._store.read(NAMESPACE, "", namespace))

    def _now(self) -> str:
        return _time(self._clock())

    def _find(self, kind: Kind, said: Object) -> Object | None:
        """The object of that name, if there is one."""
        namespace, name = said["metadata"].get("namespace", ""), said["metadata"].get("name", "")
        if not name:
            raise InvalidError(violations={"metadata.name": "name or generateName is required"})
        if bool(namespace) != kind.namespaced:
            why = "Required value" if kind.namespaced else f"a {kind.name} has none"
            raise InvalidError(violations={"metadata.namespace": why})
        try:
            return self._store.read(kind, namespace, name)
        except NotFoundError:
            return None

    def _born(self, kind: Kind, document: Object) -> Object:
        """A new object of what somebody said."""
        metadata = document["metadata"]
        if namespace := metadata.get("namespace", ""):
            home = self._store.read(NAMESPACE, "", namespace)
            if "deletionTimestamp" in home["metadata"]:
                raise PreconditionError(f'namespaces "{namespace}" is being terminated: nothing new in it')
        made = objects.checked(kind, objects.initial(kind, document), None)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._now()}
        return made

    def _changed(self, kind: Kind, result: Object, live: Object) -> Object:
        """The object after a change; the live one if that changes nothing."""
        if result == live:
            return live
        result = objects.checked(kind, result, live)
        if result != live and objects.is_respecified(kind, result, live):
            result["metadata"]["generation"] = live["metadata"]["generation"] + 1
        return result

    def _add(self, kind: Kind, made: Object, me: Owner, named: merge.Fields) -> None:
        """Stores a new object, and what follows from it."""
        self._store.write(kind, made, None)
        self._store.name(made["metadata"]["uid"], me, named)
        self._collector.settle(made, self._now())
        if kind == NAMESPACE:
            self._give_account(made)
        if kind == EVENT:
            self._drop_events()

    def _change(self, kind: Kind, live: Object, result: Object) -> None:
        """Stores a change, if it is one, and what follows from it."""
        if result != live:
            self._store.write(kind, result, live)
            self._collector.settle(result, self._now())
            self._collector.let_go(live, result, self._now())

    def _own(
        self,
        live: Object,
        result: Object,
        owners: dict[Owner, merge.Fields],
        mine: tuple[Owner, merge.Fields],
    ) -> None:
        """Stores who has which field after a change: who makes one has it, the others no more."""
        shape = merge.Shape(_kind_of(live))
        for owner, paths in (owners | dict([mine])).items():
            left = paths if owner == mine[0] else paths - merge.changed(live, result, paths, shape)
            if left != owners.get(owner):
                self._store.name(live["metadata"]["uid"], owner, left)

    def _give_account(self, namespace: Object) -> None:
        """Each namespace that lives has a ServiceAccount `default`."""
        account = objects.named(SERVICE_ACCOUNT, "default", namespace["metadata"]["name"])
        if "deletionTimestamp" not in namespace["metadata"] and not self._find(SERVICE_ACCOUNT, account):
            self._store.write(SERVICE_ACCOUNT, self._born(SERVICE_ACCOUNT, account), None)

    def _drop_events(self) -> None:
        """Those beyond the newest, and some of the too old: more than come."""
        excess, then = self._store.count(EVENT) - EVENTS, _time(self._clock() - EVENT_SECONDS)
        for index, old in enumerate(self._store.oldest(EVENT, max(excess, _DROPPED_AT_ONCE))):
            if index < excess or old["metadata"]["creationTimestamp"] < then:
                self._collector.delete(old, "Background", self._now())


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kind_of(thing: Object) -> Kind:
    named = thing.get("apiVersion", ""), thing.get("kind", "")
    try:
        return kind_of(*named)
    except (KeyError, TypeError):
        kind, version = map(shown, reversed(named))
        raise InvalidError(f'no matches for kind "{kind}" in version "{version}"') from None


def _missing(kind: Kind, said: Object) -> NotFoundError:
    return NotFoundError(f'{kind.resource} "{shown(said["metadata"]["name"])}" not found')


def _demand(kind: Kind, said: Object, live: Object | None) -> None:
    """ConflictError unless the uid and the resourceVersion that were said, if any, are the current ones."""
    current = {} if live is None else live["metadata"]
    for key in ("uid", "resourceVersion"):
        if (wanted := said["metadata"].get(key)) and wanted != current.get(key):
            name = said["metadata"]["name"]
            raise ConflictError(f'{kind.resource} "{name}": {key} is {current.get(key)}, not {shown(wanted)}')
