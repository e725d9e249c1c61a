"""The webhooks: AdmissionReview v1 over HTTPS.

An API server shows no certificate unless it is told to, so anybody who reaches the port may ask: answers hold
no secrets, and what a question costs is bounded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from libs.cluster import Bearer
from libs.errors import ExhaustedError, InvalidError, MeshError, UnavailableError
from libs.places import Places

from . import wire
from .reviewing import LONGEST_SECONDS, MARGIN_SECONDS, Question, Reviewer
from .verdict import Verdict

MOST_BYTES = 3 * 1024 * 1024
"""Of a body: an API server takes objects of 1.5 MiB, and an update has two."""
AT_ONCE = 512
SHARE = 20
"""Of these, for one address: fewer than make up all reviews, or all bytes that may be on their way in."""
_UNDERWAY_BYTES = 64 * 1024 * 1024  # of all bodies on their way in
_READY_SECONDS = 2.0
_DEFAULT_SECONDS = 5.0
_TIMEOUT = re.compile(r"(\d{1,4}(?:\.\d{1,6})?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_OPERATIONS = ("CREATE", "UPDATE")

Check = Callable[[], Awaitable[object]]


class _TooLargeError(InvalidError):
    """A body over the cap."""


class Webhooks:
    """What an API server asks, and probes."""

    def __init__(self, reviewer: Reviewer, check: Check, *, reading_seconds: float = 2.0) -> None:
        """`check` raises a MeshError while we are not ready; a body has to come in `reading_seconds`."""
        self._reviewer = reviewer
        self._check = check
        self._reading_seconds = reading_seconds
        self._underway = 0
        self._places = Places(AT_ONCE, SHARE)

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                _route("/validate", self._validate, "POST"),
                _route("/mutate", self._mutate, "POST"),
                _route("/healthz", _alive),
                _route("/livez", _alive),
                _route("/readyz", self._ready),
            ]
        )

    async def _validate(self, http: Request) -> Response:
        return await self._answered(http, self._judged)

    async def _mutate(self, http: Request) -> Response:
        return await self._answered(http, self._filled_in)

    async def _answered(
        self, http: Request, judge: Callable[[wire.Request, float], Awaitable[dict[str, Any]]]
    ) -> Response:
        try:
            with self._places.taken(http.client.host if http.client else ""):
                asked = wire.request_of(await self._body(http))
                within = _seconds(http.query_params.get("timeout", ""))
                answer = await judge(asked, within)
        except ClientDisconnect:
            return Response(status_code=400)
        except _TooLargeError as error:
            return PlainTextResponse(f"{error}\n", 413)
        except InvalidError as error:
            return PlainTextResponse(f"{error}\n", 400)
        except ExhaustedError as error:
            return PlainTextResponse(f"{error}\n", 429, {"Retry-After": "1"})
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _judged(self, asked: wire.Request, within: float) -> dict[str, Any]:
        if asked.operation not in _OPERATIONS or asked.sub_resource:
            return wire.answer(asked.uid, {}, Verdict(), {})
        thing = _object(asked)
        old = asked.old_object if asked.operation == "UPDATE" else None
        question = Question("validate", thing, old, _author(asked.user_info), within, bool(asked.dry_run))
        try:
            verdict = await self._reviewer.review(question)
        except UnavailableError as error:
            return wire.refusal(asked.uid, 503, "ServiceUnavailable", str(error))
        except InvalidError as error:  # it names too much
            return wire.refusal(asked.uid, 422, "Invalid", str(error))
        return wire.answer(asked.uid, thing, verdict, wire.notes(verdict))

    async def _filled_in(self, asked: wire.Request, _: float) -> dict[str, Any]:
        if asked.operation not in _OPERATIONS or asked.sub_resource:
            return wire.change(asked.uid, ())
        return wire.change(asked.uid, self._reviewer.defaulted(_object(asked)))

    async def _body(self, http: Request) -> bytes:
        """All of it, in time. InvalidError; ExhaustedError while too much is on its way in."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._reading_seconds):
                async for piece in http.stream():
                    body += piece
                    self._underway += len(piece)
                    if len(body) > MOST_BYTES:
                        raise _TooLargeError(f"more than {MOST_BYTES} bytes")
                    if self._underway > _UNDERWAY_BYTES:
                        raise ExhaustedError("too much is on its way at once: try again")
        except TimeoutError:
            raise InvalidError("the request did not come whole in time") from None
        finally:
            self._underway -= len(body)
        return bytes(body)

    async def _ready(self, http: Request) -> Response:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._check()
        except TimeoutError:
            return PlainTextResponse("no answer in time\n", 503)
        except MeshError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok\n")


def _route(path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
    return Route(path, endpoint, methods=[method], name=path)


async def _alive(http: Request) -> Response:
    return PlainTextResponse("ok\n")


def _object(asked: wire.Request) -> dict[str, Any]:
    if asked.object is None:
        raise InvalidError(f"{asked.operation} without an object")
    return asked.object


def _author(user: wire.User) -> Bearer:
    extra = {name: tuple(values) for name, values in (user.extra or {}).items()}
    return Bearer(user.username, tuple(user.groups or ()), user.uid, extra=extra)


def _seconds(timeout: str) -> float:
    """How long a review may take, by what the API server says that it waits."""
    match = _TIMEOUT.fullmatch(timeout)
    given = float(match[1]) * _UNITS[match[2]] if match else _DEFAULT_SECONDS
    return min(max(given - MARGIN_SECONDS, given / 2), LONGEST_SECONDS)
