"""The HTTP surface: POST /v1/chat/completions and GET /v1/models, errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from .settings import Settings
from .wire import DISCLOSURE, MODEL, Completion, RefusedError, Request, model_card, request_from_json

MAX_BODY_BYTES = 4 * 1024 * 1024
_HEADERS = {"X-Agentctl-Model": DISCLOSURE}
_RETRY_AFTER = {429: "1", 503: "1"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Provider:
    """The stand-in: every answer and every error carries the disclosure in a header."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._completions = itertools.count(1)

    def application(self) -> web.Application:
        """The routes; a fresh application may be served once."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._answer_errors])
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_get("/v1/models/{id}", self.get_model)
        return app

    async def complete(self, http: web.Request) -> web.StreamResponse:
        """One completion, in whole or as server-sent events."""
        try:
            request = request_from_json(await http.json())
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from error
        every = self._settings.fail_every
        if every and next(self._completions) % every == 0:
            raise RefusedError(self._settings.fail_status, "failure by PROVIDER_FAIL_EVERY", code="injected")
        await asyncio.sleep(self._settings.latency.total_seconds())
        completion = Completion.of(request, id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()))
        if request.stream:
            return await _stream(http, request, completion)
        return web.json_response(completion.whole(), headers=_HEADERS)

    async def list_models(self, _: web.Request) -> web.Response:
        """The one model."""
        return web.json_response({"object": "list", "data": [model_card()]}, headers=_HEADERS)

    async def get_model(self, http: web.Request) -> web.Response:
        """Its card."""
        if http.match_info["id"] != MODEL:
            raise RefusedError(404, f"no such model; this is {MODEL}", code="model_not_found", param="model")
        return web.json_response(model_card(), headers=_HEADERS)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._authorize(request)
            return await handler(request)
        except RefusedError as error:
            return _refusal(error)
        except web.HTTPException as error:  # no such route, wrong method, body too large
            return _refusal(RefusedError(error.status, error.text or error.reason))

    def _authorize(self, http: web.Request) -> None:
        key = self._settings.api_key
        given = http.headers.get("Authorization", "")
        if key and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise RefusedError(401, "incorrect API key", code="invalid_api_key")


def _refusal(error: RefusedError) -> web.Response:
    headers = dict(_HEADERS)
    if after := _RETRY_AFTER.get(error.status):
        headers["Retry-After"] = after
    return web.json_response(error.body, status=error.status, headers=headers)


async def _stream(http: web.Request, request: Request, completion: Completion) -> web.StreamResponse:
    response = web.StreamResponse(
        headers=_HEADERS | {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(http)
    for chunk in completion.chunks(include_usage=request.include_usage):
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
