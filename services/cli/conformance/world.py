"""What a run of the suite makes for the agent to live in, and the agents that it starts there."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .case import BrokenError, SkippedError, demand
from .identities import Minted
from .launching import Launcher, Process, launched
from .model import Model, Reply, Talk
from .subject import Subject, appears, connected
from .tools import NAME, Tools

SECRET = "conformance-secret-6f1d3a"
"""The API key that the agent is given, which nothing that it says may hold."""

START_SECONDS = 20.0
DRAIN_SECONDS = 3.0
IDLE = "conformance://changes/idle"
_OURS = ("AGENT_", "AGENTCTL_", "OPENAI_", "OTEL_")


@dataclass(eq=False)
class World:
    """Either a launcher, and then everything of our own; or `running`, an agent that is not ours."""

    folder: Path
    environment: Mapping[str, str]
    launcher: Launcher | None = None
    running: Subject | None = None
    model: Model = field(default_factory=Model)
    tools: Tools = field(default_factory=lambda: Tools(free_port()))
    offers_once: bool | None = None
    """Whether the program has mode once; None: nobody has tried."""
    refusal_of_once: str = ""
    _minted: Minted | None = None
    _standing_mode: str = ""
    _has_tools: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def minted(self) -> Minted:
        """Everybody's certificate."""
        if self._minted is None:
            self._minted = Minted(self.folder)
        return self._minted

    async def __aenter__(self) -> World:
        if self.launcher is not None:
            await self._stack.enter_async_context(self.model.serving())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def with_tools(self) -> Tools:
        """The tool server, which is up from now on."""
        self.needs_launch()
        if not self._has_tools:
            await self.tools.start()
            self._stack.push_async_callback(self.tools.stop)
            self._has_tools = True
        return self.tools

    def needs_launch(self) -> Launcher:
        """SkippedError if the agent is one that runs already."""
        if self.launcher is None:
            raise SkippedError("needs to start the agent itself: --command or --image")
        return self.launcher

    def settings(self, mode: str, **more: str) -> dict[str, str]:
        """The environment of an agent in this mode, which claims to be `subject`."""
        return {
            "AGENTCTL_TLS_DIR": str(self.minted.of("subject").folder),
            "AGENT_MODE": mode,
            "AGENT_MODEL": "scripted",
            "AGENT_INSTRUCTION": "Do as the script says.",
            "AGENT_PORT": str(free_port()),
            "AGENT_METRICS_PORT": str(free_port()),
            "AGENT_DRAIN_TIMEOUT": f"{DRAIN_SECONDS:g}s",
            "AGENT_START_TIMEOUT": "5s",
            "OPENAI_BASE_URL": self.model.base_url,
            "OPENAI_API_KEY": SECRET,
            **more,
        }

    @staticmethod
    def tool_setting(*endpoints: str) -> dict[str, str]:
        """The part of the environment that names tool servers."""
        servers = [
            {"name": NAME if n == 0 else f"{NAME}-{n}", "endpoint": each, "tags": ["scripted"]}
            for n, each in enumerate(endpoints)
        ]
        return {"AGENT_MCP_SERVERS": json.dumps(servers)}

    @asynccontextmanager
    async def started(self, environment: Mapping[str, str], *arguments: str) -> AsyncIterator[Process]:
        """The program as a process; nobody asks it anything."""
        launcher = self.needs_launch()
        inherited = {name: value for name, value in self.environment.items() if not name.startswith(_OURS)}
        async with launched(launcher, self.folder, environment, arguments, inherited=inherited) as process:
            yield process

    @asynccontextmanager
    async def agent(self, environment: Mapping[str, str]) -> AsyncIterator[Subject]:
        """The program once it answers. SkippedError if it refuses this environment with 2."""
        async with self.started(environment) as process:
            subject = Subject(
                address=f"127.0.0.1:{environment['AGENT_PORT']}",
                server=self.minted.principal("subject"),
                identities=self.minted,
                metrics_host="127.0.0.1",
                process=process,
                model=self.model,
                relaunch=self.started,
            )
            async with subject._stack:
                try:
                    await appears(subject, START_SECONDS)
                except TimeoutError as error:
                    raise BrokenError(
                        f"AgentService did not answer at {subject.address} within {START_SECONDS:g}s"
                        f"{process.last_words()}"
                    ) from error
                async with connected(subject):
                    yield subject

    @asynccontextmanager
    async def standing(self, **more: str) -> AsyncIterator[Subject]:
        """An agent that does nothing by itself and takes messages if any mode of it does; or the running
        one."""
        if self.running is not None:
            async with connected(replace(self.running)) as subject:
                yield subject
            return
        modes = {
            "loop": {"AGENT_LOOP_INTERVAL": "1h"},
            "reactive": {"AGENT_SUBSCRIBE": json.dumps([IDLE])},
        }
        reasons = []
        for mode in [self._standing_mode] if self._standing_mode else list(modes):
            stack = AsyncExitStack()
            async with stack:
                try:
                    extra = modes[mode]
                    if mode == "reactive":
                        tools = await self.with_tools()
                        tools.contents.setdefault(IDLE, "idle")
                        extra = extra | self.tool_setting(tools.endpoint)
                    subject = await stack.enter_async_context(self.agent(self.settings(mode, **extra) | more))
                except SkippedError as reason:
                    reasons.append(f"{mode}: {reason}")
                    continue
                self._standing_mode = mode
                yield subject
                return
        raise SkippedError("; ".join(reasons))

    @asynccontextmanager
    async def once(
        self, *replies: Reply, hold: Sequence[int] = (), extra: Mapping[str, str] | None = None, **more: str
    ) -> AsyncIterator[tuple[Process, Talk]]:
        """The program in mode once, with this script and this in its environment beside the usual."""
        self.needs_launch()
        talk = self.model.script(*replies, hold=tuple(hold))
        environment = self.settings("once", AGENT_INSTRUCTION=f"Do as the script says. {talk.word}")
        async with self.started(environment | dict(extra or {}) | more) as process:
            yield process, talk

    async def ends(
        self,
        code: int,
        *replies: Reply,
        seconds: float = 20.0,
        extra: Mapping[str, str] | None = None,
        **more: str,
    ) -> tuple[Process, Talk]:
        """The program in mode once has to end with this exit code."""
        async with self.once(*replies, extra=dict(extra or {}) | more) as (process, talk):
            ended = await process.ended(seconds)
        demand(ended == code, f"exit code {ended}, it has to be {code}{process.last_words()}")
        return process, talk


def free_port() -> int:
    """A port that nobody listens on now; none of those that connections are given (on Linux from 32768 on),
    of which there are many here."""
    while True:
        port = random.randint(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
