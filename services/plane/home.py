"""The local home: a whole plane on a machine that has only Python.

Components run in this process and enrol as they do in a cluster; agents are child processes. One trust
domain on loopback, all of it the person's who started it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceStub
from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1 import resource_service_pb2_grpc as pb_grpc
from libs import pki, telemetry
from libs.cluster.local import ADMINISTRATOR as ADMINISTRATORS_ACCOUNT
from libs.cluster.local import SYSTEM, LocalCluster, open_local
from libs.cluster.local.runner import Runner
from libs.documents import struct_of
from libs.enrol import enrolled
from libs.errors import MeshError
from libs.identity import Identity
from libs.mesh import ADMISSION, PLANE
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.settings import SettingsError
from libs.state import ADMINISTRATOR, State, write_json
from libs.work import connect
from services.admission.admitting import admitting
from services.apiserver.managing import managing
from services.coordination.coordinating import coordinating
from services.operator.operating import operating
from services.provider.providing import providing
from services.scaler.scaling import scaling

from .accounts import Accounts
from .apart import BrokenError, Watch, line_of
from .autoscaling import autoscaling
from .components import HomeSettings
from .key import handed_out, key_of
from .leftover import give_back
from .news import Say, told
from .ports import LOOPBACK as _LOOPBACK
from .ports import Ports
from .server import Resources
from .settings import Settings
from .usage import Usage

_COMMANDS = {
    f"agentctl-{service}": [sys.executable, "-P", "-m", f"services.{service}"]
    for service in ("agent", "bridge", "provider")
}
_FOREIGN = re.compile(
    r"(ADMISSION|AGENTCTL|APISERVER|COORDINATION|MCPGATEWAY|MODELGATEWAY|OPERATOR|PLANE|AGENT|BRIDGE"
    r"|PROVIDER|SCALER|OPENAI)_"
)
_PASSED_ON = ("AGENTCTL_LOG_LEVEL",)
_KEYS = ("OPENAI_API_KEY", "OPENAI_API_KEY_FILE")  # passed on only where no gateway keeps them
_ACCOUNTS = (
    "admission", "apiserver", "coordination", "mcpgateway", "modelgateway", "plane", "provider", "scaler",
)  # fmt: skip
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = logging.getLogger(__name__)


async def run(settings: Settings, environ: Mapping[str, str], say: Say) -> None:
    """Runs the plane until SIGTERM, SIGINT or SIGHUP; a second one ends the agents at once.

    SettingsError says what is wrong with the environment, BrokenError what failed, here or in a component.
    """
    assert settings.state_dir is not None  # Settings has checked
    home = Home(settings, State(settings.state_dir), say)
    task = asyncio.create_task(home.live(environ))
    with _signals(task, home.hurry):
        await asyncio.wait((task,))
    if task.cancelled():
        say("", "stopped")
    elif isinstance(error := task.exception(), SettingsError | BrokenError):
        raise error
    elif error:
        _log.error("the plane failed", exc_info=error)
        raise BrokenError(line_of(error)) from error


@contextmanager
def _signals(task: asyncio.Task[None], hurry: Callable[[], None]) -> Iterator[None]:
    """The first one cancels the task, the second hurries it. A third is as deadly as it is elsewhere."""
    loop = asyncio.get_running_loop()
    seen: list[None] = []

    def signalled() -> None:
        seen.append(None)
        if len(seen) == 1:
            task.cancel()
        else:
            forget()
            hurry()

    def forget() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no KeyboardInterrupt in the middle of anything

    for number in _SIGNALS:
        loop.add_signal_handler(number, signalled)
    try:
        yield
    finally:
        forget()


class Home:
    """A plane in its state folder."""

    def __init__(self, settings: Settings, state: State, say: Say) -> None:
        self._settings = settings
        self._state = state
        self._say = say
        self._watch = Watch()
        self._runner: Runner | None = None

    def hurry(self) -> None:
        """Ends all agents at once; for a stop that takes somebody too long."""
        self._say("", "stopping at once")
        if self._runner:
            self._runner.hurry()

    async def live(self, environ: Mapping[str, str]) -> None:
        """Runs everything until cancelled or until a component fails (BrokenError); then stops in order."""
        state, say = self._state, self._say
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(open_local(state.objects))
            state.endpoints.unlink(missing_ok=True)  # of one that was killed
            ports = Ports(state.ports, self._settings.port)
            components = HomeSettings(self._settings, state, environ, ports)
            gateways = self._settings.gateways
            passed_on = _passed_on(environ, _PASSED_ON if gateways else (*_PASSED_ON, *_KEYS))
            runner = Runner(cluster, state.objects, commands=_COMMANDS, environment=passed_on)
            endpoints = await self._start(cluster, components, runner, ports, stack)
            ports.keep()
            stack.callback(state.endpoints.unlink, missing_ok=True)
            if gateways:
                key = handed_out(cluster, key_of(environ))
                await stack.enter_async_context(self._watch.apart("key", key))
            await stack.enter_async_context(self._watch.apart("agents", _running(runner)))
            self._runner = runner
            await stack.enter_async_context(told(cluster, say))
            administrator = Identity(state.identity(ADMINISTRATOR))
            await _apply(endpoints["plane"], administrator, self._settings.manifests, say)
            write_json(state.endpoints, endpoints)
            say("", _welcome(endpoints, state))
            try:
                raise await self._watch.broken()
            finally:
                say("", "stopping: agents finish or give back what they hold (Ctrl-C again: at once)")

    async def _start(
        self,
        cluster: LocalCluster,
        components: HomeSettings,
        runner: Runner,
        ports: Ports,
        stack: AsyncExitStack,
    ) -> dict[str, str]:
        """Everything but the agents; where it listens."""
        say, apart = self._say, self._watch.apart
        accounts = Accounts(cluster, SYSTEM, self._state.folder, self._state.folder / "identities")
        accounts.identity_address = components.identity_address
        await stack.enter_async_context(accounts.mounted([*_ACCOUNTS, ADMINISTRATORS_ACCOUNT]))
        operator = components.operator
        operates = await stack.enter_async_context(apart("operator", operating(operator, cluster)))
        await operates.cache.synced()
        await runner.sweep()  # seen by the operator: what agents of a killed plane held is given back now
        say("operator", f"ready at {_LOOPBACK}:{operator.port}")
        coordination = replace(components.coordination, **_fields(accounts, "coordination"))
        served = await stack.enter_async_context(apart("coordination", coordinating(coordination)))
        say("coordination", f"ready at {served.address}")
        scaler = replace(components.scaler, **_fields(accounts, "scaler"))
        scales = await stack.enter_async_context(apart("scaler", scaling(scaler)))
        say("scaler", f"ready at {scales.address}")
        provider = replace(components.provider, listen=f"{_LOOPBACK}:{ports['provider']}")
        await stack.enter_async_context(
            apart("provider", providing(provider, accounts.credentials("provider")))
        )
        say("provider", f"a stand-in that is no model, ready at {components.stand_in_url}")
        gateways: dict[str, str] = {}
        if self._settings.gateways:
            gateways = await self._start_gateways(cluster, components, accounts, stack)
        apiserver = replace(components.apiserver, **_fields(accounts, "apiserver"))
        manages = await stack.enter_async_context(apart("apiserver", managing(apiserver, cluster)))
        say("apiserver", f"ready at {manages.address}")
        admission = replace(components.admission, **_fields(accounts, "admission"))
        admits = await stack.enter_async_context(apart("admission", admitting(admission, cluster)))
        say("admission", f"ready at {admits.address}")
        plane = await stack.enter_async_context(enrolled(accounts.credentials("plane"), "plane"))
        reviews = await stack.enter_async_context(dial(ADMISSION, admits.address, plane, timeout=10))
        resources = Resources(cluster, Usage(cluster), AdmissionServiceStub(reviews))
        address = await stack.enter_async_context(
            apart("plane", _served(resources, plane, self._settings, ports["plane"]))
        )
        administrator = await stack.enter_async_context(
            enrolled(accounts.credentials(ADMINISTRATORS_ACCOUNT), administrator=True)
        )
        if self._settings.store == "embedded":  # another one may serve other planes
            async with connect(served.address, administrator) as client:
                if count := await give_back(client.stub):
                    say("", f"{count} items that agents of a killed plane held are given back")
        # as the administrator, who may ask the scaler too: no ServiceAccount can be KEDA
        await stack.enter_async_context(
            apart("autoscaler", autoscaling(cluster, administrator, scales.address, say))
        )
        return {
            "plane": address,
            "apiserver": manages.address,
            "admission": admits.address,
            "coordination": served.address,
            "scaler": scales.address,
            **gateways,
            "operator": f"{_LOOPBACK}:{operator.port}",
            "identity": components.identity_address,
            "domain": pki.own(administrator).domain,
            "tls_dir": str(self._state.identity(ADMINISTRATOR)),
        }

    async def _start_gateways(
        self, cluster: LocalCluster, components: HomeSettings, accounts: Accounts, stack: AsyncExitStack
    ) -> dict[str, str]:
        """Where they listen."""
        from services.mcpgateway.composition import mcp_serving  # the MCP SDK: most of a second
        from services.modelgateway.serving import model_serving

        say, apart, operator = self._say, self._watch.apart, components.operator
        model_gateway = replace(
            components.modelgateway,
            **_fields(accounts, "modelgateway"),
            provider_ca_file=accounts.root,  # the stand-in's
        )
        models = await stack.enter_async_context(apart("modelgateway", model_serving(model_gateway, cluster)))
        say("modelgateway", f"ready at {operator.model_gateway_url}")
        mcp_gateway = replace(components.mcpgateway, **_fields(accounts, "mcpgateway"))
        tools = await stack.enter_async_context(apart("mcpgateway", mcp_serving(mcp_gateway, cluster)))
        say("mcpgateway", f"ready at {operator.mcp_gateway_url}")
        return {
            "modelgateway": models.address,
            "mcpgateway": tools.address,
            "model_gateway_url": operator.model_gateway_url,
            "mcp_gateway_url": operator.mcp_gateway_url,
        }


@asynccontextmanager
async def _running(runner: Runner) -> AsyncIterator[None]:
    """Agents, while the block runs; they have ended, within their grace, when it is left."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(runner.run())
        yield
        running.cancel()


@asynccontextmanager
async def _served(
    servicer: Resources, identity: Identity, settings: Settings, port: int
) -> AsyncIterator[str]:
    async with (
        serving(
            PLANE,
            identity,
            lambda server: pb_grpc.add_ResourceServiceServicer_to_server(servicer, server),
            port=port,
            front=settings.front,
        ) as served,
        telemetry.plain_port(settings.metrics_port, _always),
    ):
        yield served.address


async def _always() -> None:
    """Ready: what runs here is ready before the port answers."""


async def _apply(plane: str, administrator: Identity, manifests: tuple[str, ...], say: Say) -> None:
    """As a person would, so that admission looks at them too."""
    async with dial(PLANE, plane, administrator) as channel:
        stub = pb_grpc.ResourceServiceStub(channel)
        for path in manifests:
            for thing in filter(None, yaml.safe_load_all(Path(path).read_text())):  # noqa: ASYNC240  (at the start)
                try:
                    applied = await stub.Apply(pb.ApplyRequest(object=struct_of(thing)))
                except MeshError as error:
                    say(path, f"{thing.get('kind')} {thing.get('metadata', {}).get('name')}: {error}")
                else:
                    for warning in applied.warnings:
                        say(path, f"Warning: {warning}")


def _fields(accounts: Accounts, account: str) -> dict[str, Any]:
    credentials = accounts.credentials(account)
    return {
        "tls_dir": credentials.tls_dir,
        "token_file": credentials.token_file,
        "trust_dir": credentials.trust_dir,
        "identity_address": credentials.identity_address,
    }


def _passed_on(environ: Mapping[str, str], kept: Sequence[str]) -> dict[str, str]:
    """The person's environment, less the settings of components."""
    return {name: text for name, text in environ.items() if name in kept or not _FOREIGN.match(name)}


def _welcome(endpoints: Mapping[str, str], state: State) -> str:
    return f"""
The plane is up. Its log: {state.log}

  agentctl apply -f examples/summarize.yaml              a fleet of agents from one manifest
  agentctl work submit demo/summarize FILES... --wait    work for it, and results
  agentctl tree -n demo                                  who runs, and how they are
  agentctl top -n demo                                   what they use
  agentctl pause|resume|drain fleet/summarize -n demo    steer them

  grpcurl -cacert {endpoints["tls_dir"]}/ca.crt -cert {endpoints["tls_dir"]}/tls.crt \\
    -key {endpoints["tls_dir"]}/tls.key -authority plane.cp.{endpoints["domain"]} {endpoints["plane"]} list

Ctrl-C stops it.
"""
