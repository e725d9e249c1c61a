"""An agent under test that runs: how it is asked, as whom, and what its plain port says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from agentctl.agent.v1 import manifest_pb2, run_pb2
from libs import contract
from libs.errors import MeshError, UnavailableError
from libs.identity import Identity, Principal
from libs.mesh import AGENT
from libs.rpc.client import dial
from libs.rpc.status import error_of

from .case import BrokenError, SkippedError, demand
from .identities import Identities
from .launching import Process
from .model import Model

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

_CALL_SECONDS = 10.0
_PLAIN = aiohttp.ClientTimeout(total=5)


@dataclass(eq=False)
class Subject:
    """A running agent. Use `connected`."""

    address: str
    server: Principal
    identities: Identities
    metrics_host: str
    may_change: bool = True
    process: Process | None = None
    model: Model | None = None
    """Of an agent of ours: the one that it asks."""
    relaunch: Callable[..., AbstractAsyncContextManager[Process]] | None = None
    """Of an agent of ours: the same program again, with an environment and arguments."""
    manifest: manifest_pb2.Manifest = field(default_factory=manifest_pb2.Manifest)
    _channels: dict[str, Any] = field(default_factory=dict, init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    async def health(self) -> int:
        """What grpc.health.v1 says of the whole server."""
        channel = await self._channel(self.identities.watching())
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        return int(answer.status)

    async def as_(self, role: str) -> AgentServiceAsyncStub:
        """Its methods, called as this role. `anonymous` shows no certificate. SkippedError."""
        stub: AgentServiceAsyncStub = pb_grpc.AgentServiceStub(await self._channel(role))
        return stub

    async def _channel(self, role: str) -> Any:
        if role not in self._channels:
            opened = self._anonymous() if role == "anonymous" else self._dialled(role)
            self._channels[role] = _Naming(await self._stack.enter_async_context(opened))
        return self._channels[role]

    def _dialled(self, role: str) -> AbstractAsyncContextManager[grpc.aio.Channel]:
        return dial(
            AGENT,
            self.address,
            self.identities.of(role),
            server=self.server,
            timeout=_CALL_SECONDS,
            own_connection=True,
        )

    async def steer(self) -> AgentServiceAsyncStub:
        """Its methods as one who may use the verbs. SkippedError, also if the agent is not to be changed."""
        self.needs_change()
        return await self.as_(self.identities.steering())

    async def look(self) -> AgentServiceAsyncStub:
        """Its methods as one who may read."""
        return await self.as_(self.identities.watching())

    def needs_change(self) -> None:
        """SkippedError if the agent is not to be changed."""
        if not self.may_change:
            raise SkippedError("would change a running agent: --verbs allows it")

    def needs(self, verb: str) -> None:
        """SkippedError unless the manifest offers the verb."""
        if verb not in self.manifest.surfaces.verbs:
            raise SkippedError(f"not offered: its manifest has no verb {verb}")

    def needs_messages(self) -> None:
        """SkippedError unless the manifest says that it takes messages."""
        if not self.manifest.surfaces.messages:
            raise SkippedError("not offered: its manifest says that it takes no messages")

    def needs_model(self) -> Model:
        """The scripted model that it asks. SkippedError if that is not ours."""
        if self.model is None:
            raise SkippedError("needs a scripted model behind the agent: --command or --image")
        return self.model

    def is_newer(self, version: str) -> bool:
        """Whether this version of a table may have words that ours has not: one of a later minor."""
        minors = [each.partition(".")[2] for each in (version, contract.VERSION)]
        return all(each.isdecimal() for each in minors) and int(minors[0]) > int(minors[1])

    async def status(self) -> pb.GetStatusResponse:
        """What it says that it is doing."""
        return await (await self.look()).GetStatus(pb.GetStatusRequest())

    async def run(self, run_id: str) -> run_pb2.Run:
        """One of its runs."""
        return (await (await self.steer()).GetRun(pb.GetRunRequest(run_id=run_id))).run

    async def plain(self, path: str) -> tuple[int, str]:
        """What the plain port answers: status and text. SkippedError if it has none; BrokenError."""
        if not (port := self.manifest.surfaces.metrics_port):
            raise SkippedError("not offered: its manifest names no port of metrics")
        url = f"http://{self.metrics_host}:{port}{path}"
        try:
            async with aiohttp.ClientSession(timeout=_PLAIN) as client, client.get(url) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BrokenError(f"{url}: {str(error) or 'no answer in time'}") from error

    async def certificate(self) -> x509.Certificate:
        """The certificate that it serves with. BrokenError, also if it is not by our authority."""
        return await served_certificate(self.address, self.identities.of(self.identities.watching()))

    @asynccontextmanager
    async def _anonymous(self) -> AsyncIterator[grpc.aio.Channel]:
        root = self.identities.of(self.identities.watching()).root.read_bytes()
        options = [
            ("grpc.ssl_target_name_override", self.server.dns_name),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        credentials = grpc.ssl_channel_credentials(root)
        async with grpc.aio.secure_channel(self.address, credentials, options) as channel:
            yield channel


class _Naming:
    """A channel whose errors have a note: the method that was called."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        call = self._channel.unary_unary(method, *serdes, **kwargs)

        async def named(*args: Any, **kwargs: Any) -> Any:
            with _named(method):
                return await call(*args, **kwargs)

        return named

    def unary_stream(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        call = self._channel.unary_stream(method, *serdes, **kwargs)

        async def named(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with _named(method):
                async for message in call(*args, **kwargs):
                    yield message

        return named


@contextmanager
def _named(method: str) -> Iterator[None]:
    try:
        yield
    except (MeshError, grpc.aio.AioRpcError) as error:
        error.add_note(method.rpartition("/")[2])
        raise


@asynccontextmanager
async def connected(subject: Subject) -> AsyncIterator[Subject]:
    """The subject, once it has told its manifest; its connections are closed when the block ends."""
    async with subject._stack:
        stub = await subject.look()
        subject.manifest = (await stub.GetManifest(pb.GetManifestRequest())).manifest
        yield subject


async def served_certificate(address: str, identity: Identity) -> x509.Certificate:
    """The certificate that is served there. BrokenError, also if it is not by the identity's authority."""
    context = ssl.create_default_context(cafile=str(identity.root))
    context.load_cert_chain(identity.certificate, identity.key)
    context.check_hostname = False  # that is what is being looked at
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except TimeoutError as error:
        raise BrokenError(f"{address} does not answer within {_CALL_SECONDS:g}s") from error
    except ConnectionRefusedError as error:
        raise BrokenError(f"nobody listens at {address}") from error
    except (ssl.SSLError, ConnectionError) as error:
        raise BrokenError(f"{address} speaks no TLS that we believe: {error}") from error
    except OSError as error:
        raise BrokenError(f"{address} cannot be reached: {error.strerror or error}") from error
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()  # nothing was said that would have to be ended politely
        with suppress(OSError):
            await writer.wait_closed()
    return x509.load_der_x509_certificate(der)


async def appears(subject: Subject, seconds: float) -> None:
    """Returns when it answers. SkippedError if it ends with 2 before; BrokenError."""
    process = subject.process
    async with asyncio.timeout(seconds):
        while process is None or not process.has_ended:
            try:
                await (await subject.look()).GetManifest(pb.GetManifestRequest(), timeout=2)
            except UnavailableError:
                await asyncio.sleep(0.05)
            else:
                return
    demand(process.child.returncode == 2, f"it ended with {process.child.returncode}{process.last_words()}")
    raise SkippedError(f"not offered: it ends with 2{process.last_words()}")


async def refusal(call: Awaitable[object]) -> MeshError | None:
    """The error that a call ends with; None if it is answered."""
    try:
        await call
    except MeshError as error:
        return error
    except grpc.aio.AioRpcError as error:  # of who calls without `dial`
        return error_of(error)
    return None


async def is_refused(call: Awaitable[object], *classes: type[MeshError], saying: str = "", what: str) -> None:
    """BrokenError unless the call ends with one of these errors, in which these words stand."""
    error = await refusal(call)
    wanted = " or ".join(each.code.name for each in classes)
    demand(error is not None, f"{what} is answered, it has to be {wanted}")
    demand(isinstance(error, classes), f"{what} ends with {_said(error)}, it has to be {wanted}")
    demand(saying in str(error), f"{what}: {_said(error)} does not name {saying}")


def _said(error: MeshError | None) -> str:
    return f"{error.code.name} ({error})" if error else "nothing"
