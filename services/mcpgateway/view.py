"""What one caller sees: a server as it is, or all of its servers as one; without what is not allowed.

Where a server is one of several, names of its tools and prompts begin with `<server>__`. No server's name has
an underscore, so no two are the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mcp.shared.uri_template import UriTemplate
from opentelemetry.trace import SpanKind

from libs import telemetry
from libs.errors import DeadlineError, DeniedError, InvalidError, MeshError, NotFoundError, UnimplementedError

from . import metrics
from .rules import check_call, is_allowed
from .upstream import CHANGES, LISTS, Facts, Hear, Upstream
from .wire import MODERN, PARAMETERS, Json, RpcError

SEPARATOR = "__"
_US = {"name": "agentctl", "version": "1.0"}
_CACHEABLE = {*LISTS, "resources/read", "server/discover"}
_NO_RESOURCE = -32602
_MOST_WORDS = 128
_MERGE_SECONDS = 10.0
_MOST_INSTRUCTIONS = 16 * 1024
_CARRIED = ("tools", "prompts", "resources", "completions", "logging")

_log = logging.getLogger(__name__)

_Ask = Callable[[str, Upstream], Awaitable[Any]]


@dataclass(frozen=True)
class Caller:
    """Who asks, and how it is told of something meanwhile."""

    id: str
    is_modern: bool = True
    session: str = ""
    """Its session with us, on 2025-11-25."""
    hear: Hear | None = None
    seconds: float | None = None
    """How long it waits at most."""


class View:
    """The servers of a caller."""

    def __init__(self, upstreams: Mapping[str, Upstream], *, is_merged: bool) -> None:
        self.upstreams = upstreams
        self._is_merged = is_merged

    async def answer(self, method: str, params: Json, caller: Caller) -> Json:
        """The result of a request. RpcError, MeshError."""
        if method in LISTS:
            result = await self._list(method)
        elif method == "tools/call":
            result = await self.call_tool(params, caller)
        elif method == "prompts/get":
            upstream, name = self._target(str(params.get("name")))
            result = await self._ask(upstream, method, {**params, "name": name}, caller)
        elif method == "resources/read":
            result = await self._ask(await self.owner(str(params.get("uri"))), method, params, caller)
        elif method == "completion/complete":
            result = await self._complete(params, caller)
        elif method == "logging/setLevel":
            result = await self._set_level(params, caller)
        elif method == "server/discover":
            result = {"supportedVersions": [MODERN], **await self.introduction(is_modern=True)}
            info = result.pop("serverInfo")
            result["_meta"] = {f"{PARAMETERS}serverInfo": info}
        else:
            raise UnimplementedError(f"the gateway does not carry {method[:_MOST_WORDS]}")
        return _shaped(method, result, is_modern=caller.is_modern)

    async def introduction(self, *, is_modern: bool) -> Json:
        """Capabilities, serverInfo and instructions. MeshError, RpcError if no server says."""
        found, _ = await self._each(lambda _, upstream: upstream.facts())
        if not self._is_merged:
            (facts,) = found.values()
            info, instructions = facts.info or _US, facts.instructions
        else:
            info = _US
            said = [f"{name}: {facts.instructions}" for name, facts in found.items() if facts.instructions]
            instructions = "\n\n".join(said)[:_MOST_INSTRUCTIONS]
        result = {"capabilities": _capabilities(found.values(), is_modern), "serverInfo": info}
        return result | ({"instructions": instructions} if instructions else {})

    async def call_tool(self, params: Json, caller: Caller) -> Json:
        """The result of tools/call. ToolDeniedError, ArgumentsError, RpcError, MeshError."""
        upstream, name = self._target(str(params.get("name")))
        server, begun, result = upstream.server, time.perf_counter(), "error"
        arguments = params.get("arguments")
        try:
            check_call(server, name, arguments if isinstance(arguments, dict) else {})
            await upstream.learn()
            with _span("tools/call", server.name, name):
                answer = await self._ask(upstream, "tools/call", {**params, "name": name}, caller)
            result = "tool_error" if answer.get("isError") is True else "ok"
            return answer
        except (DeniedError, InvalidError) as error:
            result = "refused"
            _log.warning(
                "refused a call of a tool",
                extra={
                    "caller": caller.id,
                    "server": server.name,
                    "tool": name[:_MOST_WORDS],
                    "reason": error.reason,
                },
            )
            raise
        finally:
            is_known = is_allowed(server.tools, name) and upstream.knows_tool(name)
            where = upstream.namespace, server.name
            metrics.CALLS.labels(*where, name if is_known else "other", result).inc()
            metrics.SECONDS.labels(*where).observe(time.perf_counter() - begun)

    async def tools(self) -> tuple[dict[str, list[Json]], dict[str, str]]:
        """The tools of each server, under their own names; and why a server did not say."""
        found, troubles = await self._each(lambda _, upstream: _allowed_tools(upstream), may_fail=True)
        return found, {name: _why(error) for name, error in troubles.items()}

    async def owner(self, uri: str) -> Upstream:
        """Whose resource that is. RpcError if nobody's."""
        if not self._is_merged:
            return next(iter(self.upstreams.values()))
        listed, _ = await self._each(lambda _, upstream: upstream.things("resources/list"))
        for name, things in listed.items():
            if any(each.get("uri") == uri for each in things):
                return self.upstreams[name]
        listed, _ = await self._each(lambda _, upstream: upstream.things("resources/templates/list"))
        for name, things in listed.items():
            if any(_fits(str(each.get("uriTemplate")), uri) for each in things):
                return self.upstreams[name]
        raise RpcError(_NO_RESOURCE, "Resource not found", {"uri": uri})

    async def honoured(self, wanted: Json) -> tuple[Json, dict[str, tuple[str, ...]]]:
        """Of a filter of subscriptions what can be had, and the resources by server."""
        facts, _ = await self._each(lambda _, upstream: upstream.facts())
        result: Json = {
            flag: True
            for flag, capability in CHANGES.values()
            if wanted.get(flag) is True and any(it.has(capability, "listChanged") for it in facts.values())
        }
        owned: dict[str, list[str]] = {}
        uris = wanted.get("resourceSubscriptions")
        for uri in uris if isinstance(uris, list) else ():
            upstream = await self.owner(str(uri))
            if (await upstream.facts()).has("resources", "subscribe"):
                owned.setdefault(upstream.server.name, []).append(str(uri))
        if owned:
            result["resourceSubscriptions"] = [uri for uris in owned.values() for uri in uris]
        return result, {name: tuple(uris) for name, uris in owned.items()}

    def _target(self, name: str) -> tuple[Upstream, str]:
        """Whose tool or prompt it is, and its name there."""
        if not self._is_merged:
            return next(iter(self.upstreams.values())), name
        server, separator, own = name.partition(SEPARATOR)
        if not separator or server not in self.upstreams:
            raise NotFoundError(f"there is nothing of that name; names begin with <server>{SEPARATOR}")
        return self.upstreams[server], own

    async def _ask(self, upstream: Upstream, method: str, params: Json, caller: Caller) -> Json:
        return await upstream.ask(method, params, caller.id, caller.hear, caller.seconds, caller.session)

    async def _list(self, method: str) -> Json:
        async def things(name: str, upstream: Upstream) -> list[Json]:
            is_tools = method == "tools/list"
            found = await (_allowed_tools(upstream) if is_tools else upstream.things(method))
            if not self._is_merged or method.startswith("resources/"):
                return found
            ordered = sorted(found, key=lambda each: str(each.get("name")))
            return [{**each, "name": f"{name}{SEPARATOR}{each.get('name')}"} for each in ordered]

        found, troubles = await self._each(things)
        result: Json = {LISTS[method]: [each for name in found for each in found[name]]}
        if troubles:
            said = {name: _why(error) for name, error in troubles.items()}
            result["_meta"] = {"agentctl.dev/troubles": said}
        return result

    async def _complete(self, params: Json, caller: Caller) -> Json:
        ref = params.get("ref")
        if not isinstance(ref, dict):
            raise InvalidError(violations={"ref": "a prompt or a resource"})
        if ref.get("type") == "ref/prompt":
            upstream, name = self._target(str(ref.get("name")))
            ref = {**ref, "name": name}
        else:
            upstream = await self._of_template(str(ref.get("uri")))
        return await self._ask(upstream, "completion/complete", {**params, "ref": ref}, caller)

    async def _of_template(self, template: str) -> Upstream:
        if self._is_merged:
            listed, _ = await self._each(lambda _, upstream: upstream.things("resources/templates/list"))
            for name, things in listed.items():
                if any(each.get("uriTemplate") == template for each in things):
                    return self.upstreams[name]
        return await self.owner(template)

    async def _set_level(self, params: Json, caller: Caller) -> Json:
        """Servers of 2026-07-28 take a level with each request instead."""

        async def told(_: str, upstream: Upstream) -> None:
            facts = await upstream.facts()
            if not facts.is_modern and facts.has("logging"):
                await self._ask(upstream, "logging/setLevel", params, caller)

        await self._each(told)
        return {}

    async def _each(
        self, ask: _Ask, *, may_fail: bool = False
    ) -> tuple[dict[str, Any], dict[str, MeshError | RpcError]]:
        """What each server answers, and how the others failed. Of several servers some may; unless `may_fail`
        not all, and a single one not."""

        async def one(name: str, upstream: Upstream) -> Any:
            if not self._is_merged and not may_fail:
                return await ask(name, upstream)
            try:
                async with asyncio.timeout(_MERGE_SECONDS):
                    return await ask(name, upstream)
            except TimeoutError:
                return DeadlineError(f"{name} did not answer in time")
            except (MeshError, RpcError) as error:
                return error

        answers = await asyncio.gather(*(one(*each) for each in self.upstreams.items()))
        found: dict[str, Any] = {}
        failed: dict[str, MeshError | RpcError] = {}
        for name, answer in zip(self.upstreams, answers, strict=True):
            if isinstance(answer, MeshError | RpcError):
                failed[name] = answer
            else:
                found[name] = answer
        if failed and not found and not may_fail:
            raise next(iter(failed.values()))
        return found, failed


async def _allowed_tools(upstream: Upstream) -> list[Json]:
    rules = upstream.server.tools
    return [each for each in await upstream.things("tools/list") if is_allowed(rules, str(each.get("name")))]


def _shaped(method: str, result: Json, *, is_modern: bool) -> Json:
    """As the caller's revision has it."""
    if is_modern:
        result = {"resultType": "complete", **result}
        if method in _CACHEABLE and result["resultType"] == "complete":
            result = {"ttlMs": 0, **result, "cacheScope": "private"}  # it depends on whose rights they are
        return result
    if result.get("resultType", "complete") != "complete":
        raise RpcError(-32603, f"the server asks for input, which needs revision {MODERN} of MCP")
    return {name: each for name, each in result.items() if name not in ("resultType", "ttlMs", "cacheScope")}


def _capabilities(facts: Any, is_modern: bool) -> Json:
    """Those of all, and of them what the gateway carries."""
    result: Json = {}
    each: Facts
    for each in facts:
        for name in _CARRIED:
            if not isinstance(own := each.capabilities.get(name), dict):
                continue
            if name == "logging" and is_modern != each.is_modern:
                continue
            known = result.setdefault(name, {})
            known.update({flag: value for flag, value in own.items() if value or flag not in known})
    return result


def _fits(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except ValueError:
        return False


def _why(error: MeshError | RpcError) -> str:
    return str(error) if isinstance(error, MeshError) else f"answered with error {error.code}"


def _span(method: str, server: str, tool: str) -> Any:
    if not telemetry.tracing:
        return nullcontext()
    attributes = {
        "mcp.method.name": method,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool[:_MOST_WORDS],
        "agentctl.mcp.server": server,
    }
    name = f"{method} {tool[:_MOST_WORDS]}"
    return telemetry.tracer().start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes)
