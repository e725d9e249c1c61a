"""One MCP server: whatever its revision, how it is asked, listed and followed. Its faults stay its own.

A request is one exchange of HTTP, and what the server says of it comes in that exchange. On 2025-11-25 each
caller has a session of its own there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from libs import telemetry
from libs.errors import (
    DeadlineError,
    ExhaustedError,
    MeshError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.places import Places

from . import metrics
from .breaker import Breaker
from .credentials import Credentials
from .sets import Server
from .web import Web
from .wire import (
    LEGACY,
    MODERN,
    PARAMETERS,
    Events,
    Json,
    ProtocolError,
    RpcError,
    StatusError,
    message_of,
    notification,
    request,
    result_of,
)

Hear = Callable[[str, Json], Awaitable[None]]
"""Takes a notification: its method, its params."""

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""Method → where its result has the things."""
CHANGES = {
    "notifications/tools/list_changed": ("toolsListChanged", "tools"),
    "notifications/prompts/list_changed": ("promptsListChanged", "prompts"),
    "notifications/resources/list_changed": ("resourcesListChanged", "resources"),
}
"""Notification → the flag of a subscription's filter, and the capability."""
UPDATED = "notifications/resources/updated"

_US = {"name": "agentctl-mcpgateway", "version": "1.0"}
_FACTS_SECONDS = 600.0
_LIST_SECONDS, _WATCHED_SECONDS = 10.0, 300.0
_PROBE_SECONDS, _LEARN_SECONDS = 15.0, 1.0
_AGAIN_SECONDS = 5.0
_LATE_SECONDS = 5.0
_MOST_PAGES, _MOST_ITEMS = 100, 10_000
_MOST_SESSIONS, _MOST_STREAMS = 1024, 256
_MOST_EVENT = 256 * 1024
_FAULTS = (aiohttp.ClientError, OSError, ProtocolError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """What a server says of itself."""

    is_modern: bool
    version: str
    capabilities: Json
    info: Json
    instructions: str = ""

    def has(self, capability: str, flag: str = "") -> bool:
        """Whether it has this, and of that the flag."""
        found = self.capabilities.get(capability)
        return isinstance(found, dict) and (not flag or found.get(flag) is True)


@dataclass(frozen=True)
class _Session:
    id: str
    version: str


@dataclass(frozen=True)
class _Listed:
    items: list[Json]
    good_until: float
    kept_until: float


class Upstream:
    """A server, as it is asked for all who may use it."""

    def __init__(
        self, namespace: str, server: Server, credentials: Credentials, web: Web, at_once: int = 64
    ) -> None:
        self.namespace = namespace
        self.server = server
        self._credentials = credentials
        self._web = web
        self._places = Places(at_once, max(1, at_once // 2))
        self._breaker = Breaker(server.name)
        self._ids = itertools.count(1)
        self._facts: Facts | None = None
        self._facts_until = 0.0
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._listed: dict[str, _Listed] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._is_watched = False
        self._watch_after = 0.0
        self._streams = 0
        self._listeners: set[Callable[[str], None]] = set()

    async def close(self) -> None:
        """Ends what is under way in the background."""
        tasks = {*self._tasks, *self._shared.values()} | ({self._watching} if self._watching else set())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- Asking ---

    async def facts(self) -> Facts:
        """What it says of itself; asked for when it is not known. MeshError, RpcError."""
        if self._facts is not None and time.monotonic() < self._facts_until:
            return self._facts
        return await self._together("facts", self._learn_facts)  # type: ignore[no-any-return]

    async def ask(
        self,
        method: str,
        params: Json,
        who: str,
        hear: Hear | None = None,
        seconds: float | None = None,
        session: str = "",
    ) -> Json:
        """Its result, in `seconds`. `session` is whose session is used on 2025-11-25; by default the
        caller's.
        MeshError if it fails, RpcError if it answers with an error."""
        most = min(seconds or self._web.patience.call, self._web.patience.call)
        with self._places.taken(who):
            facts = await self.facts()
            with self._guarded():
                async with asyncio.timeout(most):
                    if facts.is_modern:
                        return await self._ask_modern(facts, method, params, hear)
                    return await self._ask_legacy(method, params, session or who, hear)

    async def things(self, method: str) -> list[Json]:
        """All things that one of LISTS names, as last heard. MeshError, RpcError."""
        now, known = time.monotonic(), self._listed.get(method)
        if known is not None and now < known.good_until:
            return known.items
        try:
            return await self._together(method, lambda: self._list(method))  # type: ignore[no-any-return]
        except (MeshError, RpcError):
            if known is not None and now < known.kept_until:
                return known.items
            raise

    async def learn(self) -> None:
        """Has its tools listed, if they never were; but that is no reason to wait for long."""
        if "tools/list" not in self._listed:
            with suppress(MeshError, RpcError, TimeoutError):
                async with asyncio.timeout(_LEARN_SECONDS):
                    await self.things("tools/list")

    def knows_tool(self, name: str) -> bool:
        """Whether it has listed a tool of that name."""
        return self._tool(name) is not None

    def forget(self, session: str) -> None:
        """Whose session that was is gone."""
        if (old := self._sessions.pop(session, None)) is not None:
            self._later(self._end(old))

    async def _together(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What it comes to, once for all who want it now, whoever of them goes away."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.create_task(work())

            def done(task: asyncio.Task[Any]) -> None:
                del self._shared[key]
                if not task.cancelled():
                    task.exception()  # nobody may be waiting any more

            task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _learn_facts(self) -> Facts:
        with self._guarded(is_probe=True):
            async with asyncio.timeout(_PROBE_SECONDS):
                facts = self._facts = await self._probe()
        self._facts_until = time.monotonic() + _FACTS_SECONDS
        return facts

    @contextmanager
    def _guarded(self, *, is_probe: bool = False) -> Iterator[None]:
        """Its faults as MeshError, and counted. To say what it is makes up for no failure."""
        name = self.server.name
        self._breaker.enter()
        try:
            yield
        except RpcError:
            self._breaker.succeeded()
            raise
        except StatusError as error:
            self._facts = None
            if error.status >= 500 or error.status == 429:
                self._failed()
            if error.status in (401, 403):
                raise PreconditionError(f"{name} does not accept the gateway's credential") from error
            raise UnavailableError(f"{name} {error}") from error
        except TimeoutError as error:
            self._failed()
            raise DeadlineError(f"{name} did not answer in time") from error
        except _FAULTS as error:
            self._failed()
            words = str(error) if isinstance(error, ProtocolError) else "cannot be reached, or broke off"
            raise UnavailableError(f"{name} {words}") from error
        else:
            if not is_probe:
                self._breaker.succeeded()

    def _failed(self) -> None:
        self._facts = None
        self._breaker.failed()
        metrics.FAILURES.labels(self.namespace, self.server.name).inc()

    async def _probe(self) -> Facts:
        """Modern if it answers server/discover, and says that it is."""
        with suppress(StatusError, RpcError):
            raw = await self._ask_modern(_UNKNOWN, "server/discover", {}, None)
            versions = raw.get("supportedVersions")
            if isinstance(versions, list) and MODERN in versions:
                meta = raw.get("_meta")
                info = meta.get(f"{PARAMETERS}serverInfo") if isinstance(meta, dict) else None
                return _facts(True, MODERN, raw, info)
        session, raw = await self._open()
        self._keep("", session)
        return _facts(False, session.version, raw, raw.get("serverInfo"))

    async def _ask_modern(self, facts: Facts, method: str, params: Json, hear: Hear | None) -> Json:
        identity = next(self._ids)
        meta = _modern_meta(params)
        token = _own_token(meta, identity)
        _trace(meta)
        params = {**params, "_meta": meta}
        body = request(identity, method, params)
        headers = self._modern_headers(facts, method, params)
        message, _ = await self._post(body, headers, _told(hear, token, self._heard), identity)
        return result_of(message)

    def _modern_headers(self, facts: Facts, method: str, params: Json) -> dict[str, str]:
        headers = {"MCP-Protocol-Version": facts.version, "Mcp-Method": method}
        if (field := NAME_BEARING_METHODS.get(method)) and isinstance(name := params.get(field), str):
            headers["Mcp-Name"] = encode_header_value(name)
        if method == "tools/call" and (tool := self._tool(str(params.get("name")))) is not None:
            schema = tool.get("inputSchema")
            if isinstance(arguments := params.get("arguments"), dict) and not find_invalid_x_mcp_header(
                schema
            ):
                headers |= mcp_param_headers(x_mcp_header_map(schema), arguments)
        return headers

    async def _ask_legacy(self, method: str, params: Json, key: str, hear: Hear | None) -> Json:
        identity = next(self._ids)
        meta = {name: value for name, value in _meta(params).items() if not name.startswith(PARAMETERS)}
        token = _own_token(meta, identity)
        _trace(meta)
        rest = {name: value for name, value in params.items() if name != "_meta"}
        body = request(identity, method, rest | ({"_meta": meta} if meta else {}))
        for attempt in range(2):
            session = await self._session(key)
            try:
                message, _ = await self._post(
                    body, _session_headers(session), _told(hear, token, self._heard), identity, session
                )
                return result_of(message)
            except StatusError as error:
                if error.status != 404 or not session.id or attempt:
                    raise
                self._sessions.pop(key, None)  # the server forgot it, and did nothing
            except asyncio.CancelledError:
                said = notification("notifications/cancelled", {"requestId": identity})
                self._later(self._tell(said, session))
                raise
        raise AssertionError("the second attempt returns or raises")

    async def _post(
        self,
        body: bytes,
        headers: Mapping[str, str],
        hear: Hear | None = None,
        identity: int | None = None,
        session: _Session | None = None,
    ) -> tuple[Json, str]:
        """The response of that id, and the session that it names; without an id an empty one."""
        for attempt in range(2):
            async with self._sent("POST", headers, body) as (response, credential):
                if response.status == 401 and not attempt:
                    challenges = response.headers.getall("WWW-Authenticate", [])
                    if self._credentials.refused(credential, challenges):
                        continue
                names = response.headers.get("Mcp-Session-Id", "")
                if identity is None:
                    if response.status >= 400:
                        raise StatusError(response.status)
                    return {}, names
                kind = response.content_type
                if kind == "text/event-stream" and response.status == 200:
                    return await self._streamed(response, hear, identity, session), names
                return await self._whole(response), names
        raise AssertionError("the second attempt returns or raises")

    @asynccontextmanager
    async def _sent(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None, *, is_stream: bool = False
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, dict[str, str]]]:
        credential = await self._credentials.headers()
        accept = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
        ours = {"Accept": accept, **headers, **credential}
        if body is not None:
            ours["Content-Type"] = "application/json"
        async with self._web.send(method, self.server.endpoint, ours, body, is_stream=is_stream) as response:
            yield response, credential

    async def _whole(self, response: aiohttp.ClientResponse) -> Json:
        is_json = response.content_type == "application/json"
        if not is_json:
            if response.status >= 400:
                raise StatusError(response.status)
            raise ProtocolError("answered with neither JSON nor a stream of events")
        try:
            message = message_of(await self._web.whole(response))
        except ProtocolError:
            if response.status >= 400:
                raise StatusError(response.status) from None
            raise
        if response.status >= 400 and (
            response.status in (401, 403) or response.status >= 500 or "error" not in message
        ):
            raise StatusError(response.status)
        if response.status == 404 and message.get("id") is None:
            raise StatusError(404)  # of the session, not of a method
        return message

    async def _streamed(
        self, response: aiohttp.ClientResponse, hear: Hear | None, identity: int, session: _Session | None
    ) -> Json:
        size, most = 0, self._web.patience.most_bytes
        events = Events(most)
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > most:
                raise ProtocolError(f"answered with more than {most} bytes")
            for data in events.feed(piece):
                message = message_of(data)
                method = message.get("method")
                if isinstance(method, str):
                    await self._said(method, message, hear, session)
                elif message.get("id") == identity:
                    return message
        raise ProtocolError("broke off before it had answered")

    async def _said(self, method: str, message: Json, hear: Hear | None, session: _Session | None) -> None:
        if "id" not in message:
            if hear is not None:
                params = message.get("params")
                await hear(method, params if isinstance(params, dict) else {})
        elif session is not None:  # servers' requests are not passed on: we have said that we take none
            answer: Json = {"jsonrpc": "2.0", "id": message["id"]}
            refusal = {"error": {"code": -32601, "message": "Method not found"}}
            said = msgspec.json.encode(answer | ({"result": {}} if method == "ping" else refusal))
            self._later(self._tell(said, session))

    # --- Sessions, on 2025-11-25 ---

    async def _session(self, key: str) -> _Session:
        async with self._opening:
            if (known := self._sessions.get(key)) is not None:
                self._sessions.move_to_end(key)
                return known
            session, _ = await self._open()
            self._keep(key, session)
            return session

    def _keep(self, key: str, session: _Session) -> None:
        self._sessions[key] = session
        if len(self._sessions) > _MOST_SESSIONS:
            self._later(self._end(self._sessions.popitem(last=False)[1]))

    async def _open(self) -> tuple[_Session, Json]:
        """A new session, and what the server said of itself."""
        identity = next(self._ids)
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _US}
        message, session_id = await self._post(request(identity, "initialize", params), {}, None, identity)
        raw = result_of(message)
        version = raw.get("protocolVersion")
        if not isinstance(version, str) or not version.isascii() or not version.isprintable():
            raise ProtocolError("answered with no revision of the protocol")
        session = _Session(session_id, version)
        await self._post(notification("notifications/initialized"), _session_headers(session))
        return session, raw

    async def _end(self, session: _Session) -> None:
        if session.id:
            with suppress(*_FAULTS, TimeoutError, MeshError):
                async with asyncio.timeout(_LATE_SECONDS):
                    async with self._sent("DELETE", _session_headers(session)):
                        pass

    async def _tell(self, body: bytes, session: _Session) -> None:
        with suppress(*_FAULTS, TimeoutError, MeshError):
            async with asyncio.timeout(_LATE_SECONDS):
                await self._post(body, _session_headers(session))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- Lists ---

    async def _list(self, method: str) -> list[Json]:
        facts = await self.facts()
        if not facts.has(method.partition("/")[0]):
            return []
        self._watch(facts)
        was_watched = self._is_watched
        items, size, cursor, ttl = [], 0, None, _LIST_SECONDS
        for _ in range(_MOST_PAGES):
            params: Json = {} if cursor is None else {"cursor": cursor}
            page = await self.ask(method, params, _OURSELVES, seconds=_PROBE_SECONDS)
            found = page.get(LISTS[method])
            items += [each for each in found or () if isinstance(each, dict)]
            size += len(msgspec.json.encode(found))
            if len(items) > _MOST_ITEMS or size > self._web.patience.most_bytes:
                raise UnavailableError(f"{self.server.name} lists more than is taken")
            if isinstance(page.get("ttlMs"), int) and page["ttlMs"] > 0:
                ttl = min(page["ttlMs"] / 1000, _WATCHED_SECONDS)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                break
        else:
            raise UnavailableError(f"{self.server.name} lists without end")
        now = time.monotonic()
        good = _WATCHED_SECONDS if was_watched and self._is_watched else ttl
        self._listed[method] = _Listed(items, now + good, now + _WATCHED_SECONDS)
        return items

    def _tool(self, name: str) -> Json | None:
        listed = self._listed.get("tools/list")
        return next((each for each in listed.items if each.get("name") == name), None) if listed else None

    # --- Following ---

    @asynccontextmanager
    async def listening(self, listener: Callable[[str], None]) -> AsyncIterator[None]:
        """Calls it with the method of each notification that a list has changed, while the block runs."""
        self._listeners.add(listener)
        try:
            self._watch(await self.facts())
            yield
        finally:
            self._listeners.discard(listener)

    async def follow(self, uris: tuple[str, ...] = ()) -> AsyncGenerator[tuple[str, Json], None]:
        """Notifications of changes of lists, and of these resources, until the server ends it; first of all
        ("", {}), when none can be missed any more. MeshError, RpcError."""
        if self._streams >= _MOST_STREAMS:
            raise ExhaustedError(f"{self.server.name} has too many subscriptions")
        self._streams += 1
        try:
            facts = await self.facts()
            inner = self._listen(facts, uris) if facts.is_modern else self._stream(uris)
            with self._guarded():
                async with aclosing(inner):
                    async for each in inner:
                        yield each
        finally:
            self._streams -= 1

    async def _listen(self, facts: Facts, uris: tuple[str, ...]) -> AsyncGenerator[tuple[str, Json], None]:
        wanted: Json = {
            flag: True for flag, capability in CHANGES.values() if facts.has(capability, "listChanged")
        }
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        params = {"notifications": wanted, "_meta": _modern_meta({})}
        body = request(f"listen-{next(self._ids)}", "subscriptions/listen", params)
        headers = self._modern_headers(facts, "subscriptions/listen", params)
        async with self._sent("POST", headers, body, is_stream=True) as (response, _):
            if response.status != 200 or response.content_type != "text/event-stream":
                result_of(await self._whole(response))
                return
            async for message in _messages(response):
                method, told = message.get("method"), message.get("params")
                if not isinstance(method, str):
                    return
                is_ack = method == "notifications/subscriptions/acknowledged"
                yield ("", {}) if is_ack else (method, told if isinstance(told, dict) else {})

    async def _stream(self, uris: tuple[str, ...]) -> AsyncGenerator[tuple[str, Json], None]:
        session, _ = await self._open()
        try:
            headers = _session_headers(session)
            async with self._sent("GET", headers, is_stream=True) as (response, _):
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise UnimplementedError(f"{self.server.name} does not tell of changes")
                for uri in uris:
                    identity = next(self._ids)
                    body = request(identity, "resources/subscribe", {"uri": uri})
                    message, _ = await self._post(body, headers, None, identity, session)
                    result_of(message)
                yield "", {}
                async for message in _messages(response):
                    if isinstance(method := message.get("method"), str) and "id" not in message:
                        told = message.get("params")
                        yield method, told if isinstance(told, dict) else {}
        finally:
            self._later(self._end(session))

    def _watch(self, facts: Facts) -> None:
        """Follows its lists from now on, if it tells of their changes."""
        tells = any(facts.has(capability, "listChanged") for _, capability in CHANGES.values())
        is_over = self._watching is None or self._watching.done()
        if tells and is_over and time.monotonic() >= self._watch_after:
            self._watching = asyncio.create_task(self._watch_lists())

    async def _watch_lists(self) -> None:
        while True:
            try:
                async with aclosing(self.follow()) as changes:
                    async for method, _ in changes:
                        self._is_watched = True
                        self._changed(method)
            except (MeshError, RpcError) as error:
                _log.info("no news of lists", extra={"server": self.server.name, "reason": str(error)})
            finally:
                if self._is_watched:
                    self._is_watched = False
                    self._listed.clear()
                self._watch_after = time.monotonic() + _AGAIN_SECONDS
            for method in CHANGES:  # what was told meanwhile is lost
                self._changed(method)
            if not self._listeners:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _heard(self, method: str) -> None:
        self._changed(method)

    def _changed(self, method: str) -> None:
        if method not in CHANGES:
            return
        capability = CHANGES[method][1]
        for each in LISTS:
            if each.startswith(capability) and (known := self._listed.get(each)) is not None:
                self._listed[each] = _Listed(known.items, 0.0, known.kept_until)
        for listener in tuple(self._listeners):
            listener(method)


_OURSELVES = "mcpgateway"
_UNKNOWN = Facts(True, MODERN, {}, {})


def _facts(is_modern: bool, version: str, raw: Json, info: object) -> Facts:
    capabilities, instructions = raw.get("capabilities"), raw.get("instructions")
    return Facts(
        is_modern,
        version,
        capabilities if isinstance(capabilities, dict) else {},
        info if isinstance(info, dict) else {},
        instructions if isinstance(instructions, str) else "",
    )


def _meta(params: Json) -> Json:
    meta = params.get("_meta")
    return dict(meta) if isinstance(meta, dict) else {}


def _modern_meta(params: Json) -> Json:
    """The caller's, and what the revision asks for beside it."""
    meta = _meta(params)
    meta.setdefault(f"{PARAMETERS}clientCapabilities", {})
    meta.setdefault(f"{PARAMETERS}clientInfo", _US)
    return meta | {f"{PARAMETERS}protocolVersion": MODERN}


def _own_token(meta: Json, identity: int) -> object:
    """Puts our token for progress in the place of the caller's, which it returns: two callers may have the
    same."""
    token = meta.get("progressToken")
    if token is not None:
        meta["progressToken"] = identity
    return token


def _trace(meta: Json) -> None:
    if telemetry.tracing:
        telemetry.inject(meta)


def _told(hear: Hear | None, token: object, changed: Callable[[str], Awaitable[None]]) -> Hear:
    """What hears a server during a request: changes of lists are for all, the rest is for who asked."""

    async def told(method: str, params: Json) -> None:
        if method in CHANGES:
            await changed(method)
        elif hear is not None and method == "notifications/progress":
            if token is not None:
                await hear(method, {**params, "progressToken": token})
        elif hear is not None and method == "notifications/message":
            await hear(method, params)

    return told


def _session_headers(session: _Session) -> dict[str, str]:
    headers = {"MCP-Protocol-Version": session.version}
    return headers | ({"Mcp-Session-Id": session.id} if session.id else {})


async def _messages(response: aiohttp.ClientResponse) -> AsyncGenerator[Json, None]:
    events = Events(_MOST_EVENT)
    async for piece in response.content.iter_any():
        for data in events.feed(piece):
            yield message_of(data)
