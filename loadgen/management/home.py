"""The local plane that is measured: one that runs, or one of our own."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceStub
from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceStub
from agentctl.resource.v1 import resource_service_pb2 as resources_pb
from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
from libs.documents import struct_of
from libs.errors import NotFoundError
from libs.identity import Identity
from libs.mesh import ADMISSION, APISERVER, PLANE
from libs.rpc.client import dial
from libs.state import State

from ..child import ServerError, child, end_of
from .corpus import Object, fleet, surroundings

if TYPE_CHECKING:
    from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceAsyncStub
    from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceAsyncStub
    from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceAsyncStub

_FLEET = "management-load"
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.25


@contextmanager
def plane(state_dir: Path | None, environment: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Where the plane that runs on the folder listens; without a folder a new one's, which is gone with the
    block. ServerError."""
    if state_dir:
        endpoints: Mapping[str, str] = State(state_dir).running()
        if not endpoints:
            raise ServerError(f"no plane runs on {state_dir}")
        yield endpoints
        return
    with tempfile.TemporaryDirectory(prefix="agentctl-management-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # a plane that root starts lets others pass
        state, log = State(folder / "state"), folder / "plane.log"
        told = {"AGENTCTL_STATE_DIR": str(state.folder), "PLANE_STORE": "memory"}
        with child("services.plane", (), {**environment, **told}, log) as process:
            deadline = time.monotonic() + _START_SECONDS
            while not (endpoints := state.running()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ServerError(f"the plane did not come up; {end_of(log)}")
                time.sleep(_LOOK_SECONDS)
            yield endpoints


@dataclass(frozen=True)
class Home:
    """What is asked of a plane."""

    namespace: str
    admission: AdmissionServiceAsyncStub
    management: ManagementServiceAsyncStub
    resources: ResourceServiceAsyncStub

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[str]:
        """The name of a fleet that `scale` makes; it is deleted with the block."""
        try:
            yield _FLEET
        finally:
            request = resources_pb.DeleteRequest(kind="AgentFleet", namespace=self.namespace, name=_FLEET)
            with suppress(NotFoundError):  # it was never made
                await self.resources.Delete(request)

    async def scale(self, agents: int, patience: float) -> None:
        """Returns when the fleet has so many agents, all ready. TimeoutError after so many seconds."""
        await self.apply(fleet(self.namespace, _FLEET, agents))
        target = pb.GetStatusRequest(target=pb.Target(namespace=self.namespace, fleet=_FLEET))
        async with asyncio.timeout(patience):
            while True:
                pods = (await self.management.GetStatus(target)).pods
                if len(pods) == agents and all(pod.status.ready for pod in pods):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def apply(self, thing: Object) -> None:
        """As `agentctl apply`."""
        await self.resources.Apply(resources_pb.ApplyRequest(object=struct_of(thing)))


@asynccontextmanager
async def reach(endpoints: Mapping[str, str], namespace: str) -> AsyncIterator[Home]:
    """The plane there, as its administrator; the namespace has what reviews look up."""
    identity = Identity(Path(endpoints["tls_dir"]))
    async with (
        dial(ADMISSION, endpoints["admission"], identity) as admission,
        dial(APISERVER, endpoints["apiserver"], identity) as management,
        dial(PLANE, endpoints["plane"], identity) as resources,
    ):
        home = Home(
            namespace,
            AdmissionServiceStub(admission),
            ManagementServiceStub(management),
            ResourceServiceStub(resources),
        )
        for thing in surroundings(namespace):
            await home.apply(thing)
        yield home
