"""`KubernetesCluster`: each promise of the port as the request that keeps it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from libs.cluster import (
    Access,
    Bearer,
    Change,
    Cluster,
    ExpiredError,
    Listing,
    Log,
    Object,
    Propagation,
)
from libs.cluster.kinds import POD, SERVICE_ACCOUNT, Kind, kind_of
from libs.errors import ConflictError, InvalidError, UnauthenticatedError
from libs.settings import SettingsError

from .api import Api, Query, path_of
from .watching import change_of, lines

_DEADLINE = 30.0
_PAGE = 500
_WATCH_SECONDS = 300, 600  # so that watches do not all end at once
_SILENCE = 150.0  # a watch cache sends a bookmark about once a minute
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_TOKEN_ID = "authentication.kubernetes.io/credential-id"


@asynccontextmanager
async def connect(
    kubeconfig: Path | None,
    context: str = "",
    *,
    deadline: float = _DEADLINE,
    silence: float = _SILENCE,
    warned: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[KubernetesCluster]:
    """The cluster of a kubeconfig's context; without one, that of our pod's ServiceAccount, or where we are
    in no pod, that of kubectl's default. A request ends within `deadline` seconds, a watch after `silence`
    seconds without a word; `warned` hears the API server's warnings. SettingsError if there is no such
    configuration. It asks nothing yet, see `version`."""

    async def load() -> Configuration:
        return await _configuration(kubeconfig, context)

    try:
        api = Api(await load(), load, deadline, warned)
    except (ConfigException, yaml.YAMLError, OSError) as error:
        raise SettingsError(f"no way to a cluster: {error}") from error
    except (TypeError, ValueError, AttributeError, KeyError) as error:  # how the client says: of no such form
        raise SettingsError(f"no way to a cluster: not a kubeconfig ({error})") from error
    try:
        yield KubernetesCluster(api, silence)
    finally:
        await api.close()


async def _configuration(kubeconfig: Path | None, context: str) -> Configuration:
    configuration = Configuration()
    if kubeconfig is None and not context:
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except ConfigException:
            pass  # we are in no pod
        else:
            return configuration
    await load_kube_config(  # type: ignore[no-untyped-call]
        config_file=str(kubeconfig) if kubeconfig else None,
        context=context or None,
        client_configuration=configuration,
        persist_config=False,
    )
    return configuration


class KubernetesCluster(Cluster):
    """A cluster behind its API server; made by `connect`."""

    def __init__(self, api: Api, silence: float) -> None:
        self._api = api
        self._silence = silence

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """As the port says."""
        return await self._api.ask("GET", path_of(kind, namespace, name))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        """As the port says; over the wire it comes in pages of 500."""
        selector = _selector(labels, name)
        path = path_of(kind, namespace)
        try:
            pages = [page async for page in self._pages(path, [*selector, ("limit", str(_PAGE))])]
        except ExpiredError:  # between two pages; in one piece it cannot be
            pages = [await self._api.ask("GET", path, selector)]
        items = [thing for page in pages for thing in page["items"] or ()]
        for thing in items:  # a list's items of the built-in kinds do not say what they are
            thing.setdefault("apiVersion", kind.api_version)
            thing.setdefault("kind", kind.name)
        return Listing(items, pages[-1]["metadata"].get("resourceVersion", ""))  # metrics have none

    async def watch(
        self, kind: Kind, namespace: str = "", labels: str = "", *, since: str = "", name: str = ""
    ) -> AsyncIterator[Change]:
        """As the port says. UnavailableError, too, when even bookmarks stay away."""
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(random.randint(*_WATCH_SECONDS))),
        ]
        query += [("resourceVersion", since)] if since else []
        query += _selector(labels, name)
        path = path_of(kind, namespace)
        async with (
            self._api.stream(path, query, silence=self._silence) as pieces,
            aclosing(lines(pieces)) as told,
        ):
            async for line in told:
                yield change_of(line)

    async def create(self, thing: Object) -> Object:
        """As the port says."""
        kind, namespace, _ = _where(thing)
        if kind.namespaced and not namespace:
            raise InvalidError(violations={"metadata.namespace": "Required value"})
        return await self._api.ask("POST", path_of(kind, namespace), body=thing)

    async def apply(
        self, thing: Object, manager: str, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """As the port says."""
        query = [("fieldManager", manager), ("force", "true")]
        query += [("dryRun", "All")] if dry_run else []
        path = path_of(*_where(thing), subresource)
        return await self._api.ask("PATCH", path, query, thing, form="apply-patch+yaml")  # JSON is YAML

    async def replace(self, thing: Object) -> Object:
        """As the port says."""
        if not thing["metadata"].get("resourceVersion"):  # an API server would take it for "whatever it is"
            raise ConflictError("there is no telling of which revision that is")
        return await self._api.ask("PUT", path_of(*_where(thing)), body=thing)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background"
    ) -> None:
        """As the port says."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        await self._api.ask("DELETE", path_of(kind, namespace, name), body=options)

    async def review_token(self, token: str, audience: str) -> Bearer:
        """As the port says. An API server may believe a token for ten seconds more than it should."""
        if not token:
            raise UnauthenticatedError("there is no token")
        audiences = [audience] if audience else []
        status = await self._review("authentication.k8s.io", "TokenReview", token=token, audiences=audiences)
        # An authenticator that knows no audiences names none: then the token may be for anybody. If we name
        # none, the API server has asked for its own.
        is_ours = not audience or audience in status.get("audiences", ())
        if not status.get("authenticated") or not is_ours:
            raise UnauthenticatedError(status.get("error") or f"the token is not for {audience or 'the API'}")
        user = status["user"]
        extra = {name: tuple(values) for name, values in (user.get("extra") or {}).items()}
        return Bearer(
            username=user["username"],
            groups=tuple(user.get("groups") or ()),
            uid=user.get("uid", ""),
            pod=_first(extra, _POD_NAME),
            pod_uid=_first(extra, _POD_UID),
            token_id=_first(extra, _TOKEN_ID) or hashlib.sha256(token.encode()).hexdigest(),
            expires_at=_expiry(token),
            extra=extra,
        )

    async def review_access(self, bearer: Bearer, access: Access) -> bool:
        """As the port says."""
        status = await self._review(
            "authorization.k8s.io",
            "SubjectAccessReview",
            user=bearer.username,
            groups=list(bearer.groups),
            uid=bearer.uid,
            extra={name: list(values) for name, values in bearer.extra.items()},
            resourceAttributes={
                "verb": access.verb,
                "group": access.group,
                "resource": access.resource,
                "namespace": access.namespace,
                "name": access.name,
                "subresource": access.subresource,
            },
        )
        return bool(status["allowed"])

    async def issue_token(self, namespace: str, account: str, audience: str, seconds: int) -> str:
        """As the port says. InvalidError for less than ten minutes."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience] if audience else [], "expirationSeconds": seconds},
        }
        path = path_of(SERVICE_ACCOUNT, namespace, account, "token")
        return str((await self._api.ask("POST", path, body=body))["status"]["token"])

    async def logs(self, log: Log) -> AsyncIterator[bytes]:
        """As the port says."""
        query = [("container", log.container)] if log.container else []
        query += [("tailLines", str(log.tail))] if log.tail is not None else []
        query += [(name, "true") for name in ("follow", "previous") if getattr(log, name)]
        path = path_of(POD, log.namespace, log.pod, "log")
        async with self._api.stream(path, query, silence=None if log.follow else self._silence) as pieces:
            async for piece in pieces:
                yield piece

    async def call(
        self, method: str, path: str, query: Query = (), body: object = None, *, seconds: float = _DEADLINE
    ) -> tuple[int, Mapping[str, Any]]:
        """What an aggregated API answers in so many seconds: the HTTP status, and JSON, of a refusal too (as
        `message`, if it is no JSON). UnavailableError if nothing came."""
        return await self._api.call(method, path, query, body, seconds)

    async def version(self) -> str:
        """As the port says."""
        return f"Kubernetes {(await self._api.ask('GET', '/version'))['gitVersion']}"

    async def _pages(self, path: str, query: Query) -> AsyncIterator[Object]:
        further = ""
        while True:
            page = await self._api.ask("GET", path, [*query, ("continue", further)] if further else query)
            yield page
            further = page["metadata"].get("continue", "")
            if not further:
                return

    async def _review(self, group: str, name: str, **spec: object) -> Object:
        """What a review that is made for its answer alone says."""
        kind = Kind(group, "v1", name, f"{name.lower()}s", namespaced=False)
        body = {"apiVersion": kind.api_version, "kind": name, "spec": spec}
        status: Object = (await self._api.ask("POST", path_of(kind), body=body))["status"]
        return status


def _selector(labels: str, name: str) -> list[tuple[str, str]]:
    selector = [("labelSelector", labels)] if labels else []
    return [*selector, ("fieldSelector", f"metadata.name={name}")] if name else selector


def _where(thing: Object) -> tuple[Kind, str, str]:
    """Its kind, namespace and name; "" for what it does not say."""
    metadata = thing.get("metadata", {})
    try:
        kind = kind_of(thing.get("apiVersion", ""), thing.get("kind", ""))
    except KeyError as unknown:
        raise InvalidError(f"no objects of apiVersion and kind {unknown}") from None
    return kind, metadata.get("namespace", ""), metadata.get("name", "")


def _first(extra: dict[str, tuple[str, ...]], name: str) -> str:
    return next(iter(extra.get(name, ())), "")


def _expiry(token: str) -> float:
    """When a token that was already believed expires, which a review does not tell."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.DecodeError:
        return float("inf")  # not of a kind that says
    return float(claims.get("exp", "inf"))
