"""A coordination service that answers what a test tells it to, and the command line in front of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs.mesh import COORDINATION
from libs.rpc.server import serving
from libs.testing.ca import authority, identity

from ..__main__ import app

STREAMS = ("WatchResults", "WatchQueues")


class Scripted:
    """Answers each RPC with the next of its answers (the last one for ever), and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.requests: dict[str, list[Any]] = defaultdict(list)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if not method[0].isupper():
            raise AttributeError(method)
        return self._stream(method) if method in STREAMS else self._unary(method)

    def _unary(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def answer(request: Any, _: object) -> Any:
            self.requests[method].append(request)
            answers = self.answers[method]
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            if callable(found):
                return found(request)
            if isinstance(found, Exception):
                raise found
            return found

        return answer

    def _stream(self, method: str) -> Callable[..., AsyncIterator[Any]]:
        async def answers(request: Any, _: object) -> AsyncIterator[Any]:
            self.requests[method].append(request)
            for each in self.answers.get(method, []):
                yield each(request) if callable(each) else each
            if method == "WatchQueues":
                await asyncio.Event().wait()

        return answers


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def agentctl(scripted: Scripted, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Result]]]:
    """Runs a command as an administrator against the scripted service."""
    server = identity(authority(), tmp_path, "/cp/coordination")
    person = identity(authority(), tmp_path, "/user/ann")

    servicer: Any = scripted  # it has every method, though nobody can see them

    def register(doorway: Any) -> None:
        pb_grpc.add_CoordinationServiceServicer_to_server(servicer, doorway)

    async with serving(COORDINATION, server, register) as up:
        environment = {
            "AGENTCTL_COORDINATION_ADDRESS": up.address,
            "AGENTCTL_TLS_DIR": str(person.folder),
            "AGENTCTL_STATE_DIR": str(tmp_path / "state"),
        }

        async def run(*arguments: str, stdin: bytes | None = None) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin, env=environment)

        yield run
