"""The local plane: which processes it is made of, with which identities and environments, in which order.

One trust domain on loopback, all of it one person's. Children learn everything from their environment.
"""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from . import names, pki
from .choices import Front, Store
from .output import Exit, FailedError
from .processes import Record, end, left_over
from .state import ADMINISTRATOR, State, write_json
from .supervisor import Child, Launch, Say, free_port

if TYPE_CHECKING:
    from libs.pki import Authority

_CONTROL_PLANE_LIFETIME = timedelta(hours=24)
_AGENT_LIFETIME = timedelta(hours=1)
_RENEWAL_SECONDS = 30.0  # between two looks at what is due
_GRACE = {"agent": 35.0, "coordination": 20.0, "provider": 10.0}  # a little over what each takes by itself
_OURS = re.compile(r"(AGENTCTL|COORDINATION|AGENT|PROVIDER|OPENAI)_")
_PATH = re.compile(r"\S*/\S*|\S*\.\w+")  # what is meant as a path: no spaces, and a slash or an extension
_STAND_IN = "agentctl-extractive"

Release = Callable[[str, str, str], Awaitable[int]]
"""`release(namespace, pod uid, reason)`: gives back what the pod holds."""


@dataclass(frozen=True)
class Plan:
    """What to run."""

    queue: str
    agents: int
    store: Store
    database_file: Path | None
    instruction: str
    port: int
    front: Front
    environment: Mapping[str, str]  # of the person who started us

    def __post_init__(self) -> None:
        """FailedError says which option does not fit."""
        try:
            names.queue(self.queue)
        except ValueError as error:
            raise FailedError(f"--queue: {error}", Exit.USAGE) from error
        if _PATH.fullmatch(self.instruction) and not Path(self.instruction).is_file():
            raise FailedError(
                f"--instruction {self.instruction}: there is no such file "
                "(if this is the instruction itself, write it as words with spaces)",
                Exit.USAGE,
            )
        if (self.store is Store.POSTGRES) != (self.database_file is not None):
            raise FailedError("--store postgres and --dsn-file FILE go together", Exit.USAGE)
        if self.environment.get("OPENAI_BASE_URL") and not self.environment.get("AGENT_MODEL"):
            raise FailedError(
                "OPENAI_BASE_URL is set: also set AGENT_MODEL to the model to ask for", Exit.USAGE
            )

    @property
    def namespace(self) -> str:
        return self.queue.partition("/")[0]

    @property
    def fleet(self) -> str:
        return self.queue.partition("/")[2]


@dataclass
class Certificate:
    """A certificate that we renew as long as it is in use."""

    spiffe_path: str
    folder: Path
    lifetime: timedelta
    issued: datetime


class LocalPlane:
    """The processes of a plan in a state folder."""

    def __init__(self, plan: Plan, state: State, say: Say) -> None:
        self._plan = plan
        self._state = state
        self._say = say
        self._authority: Authority = pki.ensure(state)
        self._certificates: dict[Path, Certificate] = {}
        self._record = Record(state.children)
        self._started: list[Child] = []
        self._agents = [
            self._child(f"{plan.fleet}-{number}", self._agent, "agent")
            for number in range(1, plan.agents + 1)
        ]
        self._port = plan.port
        self._provider_url = plan.environment.get("OPENAI_BASE_URL", "")

    async def sweep(self) -> None:
        """Ends what an `up` that was killed has left running here."""
        found = left_over(self._state.children)
        agents = [each for each in found if each.name not in _GRACE]
        for together in (agents, *([each] for each in found if each.name in _GRACE)):
            for each in together:
                self._say(each.name, f"left over from an `up` that was killed (pid {each.pid}): stopping it")
            await asyncio.gather(*(end(each, _GRACE.get(each.name, _GRACE["agent"])) for each in together))
        self._state.children.unlink(missing_ok=True)
        self._state.endpoints.unlink(missing_ok=True)

    async def start(self) -> None:
        """Starts everything in order, each when what it needs is ready. DiedError if something cannot."""
        self._issue(f"user/{ADMINISTRATOR}", ADMINISTRATOR, pki.ADMINISTRATOR_LIFETIME)
        if not self._provider_url:
            await self._start(self._child("provider", self._provider, "provider"))
        await self._start(self._child("coordination", self._coordination, "coordination"))
        self._write_endpoints()
        async with asyncio.TaskGroup() as tasks:
            for agent in self._agents:
                tasks.create_task(self._start(agent))

    async def run(self, release: Release) -> None:
        """Keeps everything running, until cancelled or until something ended that nothing can replace."""

        def gone(launch: Launch) -> None:
            tasks.create_task(self._release(release, launch.uid))

        async with asyncio.TaskGroup() as tasks:
            for child in self._started:
                if child in self._agents:
                    tasks.create_task(child.keep(self._record, self._say, gone))
                else:
                    tasks.create_task(child.guard(self._record))
            tasks.create_task(self._renew())

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stops agents first, so that they can give back what they hold, then the rest. Bounded."""
        self._state.endpoints.unlink(missing_ok=True)
        async with asyncio.TaskGroup() as tasks:
            for agent in self._agents:
                tasks.create_task(agent.stop(self._record, self._say, hurry))
        for child in reversed(self._started):
            await child.stop(self._record, self._say, hurry)
            if child.name == "coordination" and child.exit_code != 0 and self._plan.store is Store.EMBEDDED:
                await self._stop_database()
        self._state.children.unlink(missing_ok=True)

    @property
    def domain(self) -> str:
        return self._authority.domain

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def _stop_database(self) -> None:
        """Coordination died and could not: whoever uses a database last stops it, so use it once more."""
        from libs import postgres
        from libs.errors import UnavailableError

        with suppress(UnavailableError):
            async with postgres.embedded(self._state.data):
                pass
            self._say("database", "stopped")

    def _child(self, name: str, launch: Callable[[str], Launch], kind: str) -> Child:
        log = self._state.logs / f"{name}.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        return Child(name, lambda: launch(name), log=log, grace=_GRACE[kind])

    async def _start(self, child: Child) -> None:
        self._started.append(child)
        took = await child.start(self._record)
        where = self.address if child.name == "coordination" else ""
        self._say(child.name, f"ready{f' at {where}' if where else ''} after {took:.1f} s, pid {child.pid}")

    def _provider(self, name: str) -> Launch:
        port = free_port()
        self._provider_url = f"http://127.0.0.1:{port}/v1"
        ours = {"PROVIDER_LISTEN": f"127.0.0.1:{port}"}
        environment = self._environment("PROVIDER_") | ours
        return Launch(_module("provider"), environment, [port], f"{self._provider_url}/models")

    def _coordination(self, name: str) -> Launch:
        self._port = self._plan.port or free_port()
        plain = free_port()
        ours = {
            "COORDINATION_STORE": self._plan.store.value,
            "COORDINATION_HOST": "127.0.0.1",
            "COORDINATION_PORT": str(self._port),
            "COORDINATION_METRICS_PORT": str(plain),
            "AGENTCTL_FRONT": self._plan.front.value,
            "AGENTCTL_TLS_DIR": str(self._issue("cp/coordination", name, _CONTROL_PLANE_LIFETIME)),
        }
        if self._plan.store is Store.EMBEDDED:
            ours["COORDINATION_DATA_DIR"] = str(self._state.data)
        if self._plan.database_file:
            ours["COORDINATION_DATABASE_FILE"] = str(self._plan.database_file.absolute())
        environment = self._environment("COORDINATION_") | ours
        ports = [self._port, plain]
        return Launch(_module("coordination"), environment, ports, f"http://127.0.0.1:{plain}/readyz")

    def _agent(self, name: str) -> Launch:
        plain, uid = free_port(), str(uuid.uuid4())
        path = f"ns/{self._plan.namespace}/agent/{self._plan.fleet}/pod/{name}/{uid}"
        ours = {
            "AGENT_QUEUE": self._plan.queue,
            "AGENT_METRICS_PORT": str(plain),
            "OPENAI_BASE_URL": self._provider_url,
            "AGENTCTL_COORDINATION_ADDRESS": self.address,
            "AGENTCTL_TLS_DIR": str(self._issue(path, name, _AGENT_LIFETIME)),
            **self._instruction(),
        }
        environment = {"AGENT_MODEL": _STAND_IN} | self._environment("AGENT_", "OPENAI_") | ours
        return Launch(_module("agent"), environment, [plain], f"http://127.0.0.1:{plain}/readyz", uid)

    def _instruction(self) -> dict[str, str]:
        path = Path(self._plan.instruction)
        is_path = "\n" not in self._plan.instruction and len(self._plan.instruction) < 1024 and path.is_file()
        if is_path:
            return {"AGENT_INSTRUCTION_FILE": str(path.absolute())}
        return {"AGENT_INSTRUCTION": self._plan.instruction}

    def _environment(self, *prefixes: str) -> dict[str, str]:
        """What the person set, less the settings of other components."""
        return {
            name: value
            for name, value in self._plan.environment.items()
            if name.startswith(prefixes) or name == "AGENTCTL_LOG_LEVEL" or not _OURS.match(name)
        }

    def _issue(self, spiffe_path: str, name: str, lifetime: timedelta) -> Path:
        folder = pki.issue(self._authority, spiffe_path, self._state.identity(name), lifetime)
        self._certificates[folder] = Certificate(spiffe_path, folder, lifetime, datetime.now())
        return folder

    async def _renew(self) -> None:
        """Issues anew what is at two thirds of its life. The wall clock counts: certificates end by it."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            for each in list(self._certificates.values()):
                if datetime.now() - each.issued > each.lifetime * 2 / 3:
                    self._issue(each.spiffe_path, each.folder.name, each.lifetime)

    async def _release(self, release: Release, uid: str) -> None:
        """The pod is gone for certain, so nobody needs to wait for its leases to end."""
        count = await release(self._plan.namespace, uid, "the process ended")
        if count:
            self._say("coordination", f"{count} items of the ended agent given back")

    def _write_endpoints(self) -> None:
        write_json(
            self._state.endpoints,
            {
                "coordination": self.address,
                "provider": self._provider_url,
                "queue": self._plan.queue,
                "tls_dir": str(self._state.identity(ADMINISTRATOR)),
            },
        )


def _module(service: str) -> list[str]:
    return [sys.executable, "-m", f"services.{service}"]


def releaser(address: str, tls_dir: Path) -> Release:
    """Releases pods through a connection made for the purpose; what fails is left to the leases' own end."""

    async def release(namespace: str, uid: str, reason: str) -> int:
        from agentctl.coordination.v1 import coordination_service_pb2 as pb
        from libs.errors import MeshError
        from libs.identity import Identity
        from libs.work import connect

        with suppress(MeshError, OSError):
            async with connect(address, Identity(tls_dir)) as client:
                request = pb.ReleaseWorkerRequest(namespace=namespace, pod_uid=uid, reason=reason)
                return (await client.stub.ReleaseWorker(request)).released_count
        return 0

    return release
