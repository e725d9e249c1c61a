"""The verbs on a fleet, again and again, each answer and each effect looked at."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from agentctl.management.v1 import management_service_pb2 as pb

from .sample import Row, Sample

if TYPE_CHECKING:
    from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceAsyncStub

STAGES = {"accepted": pb.STAGE_ACCEPTED, "in effect": pb.STAGE_IN_EFFECT}
_BY = "gRPC"
_DEADLINE = timedelta(seconds=10)


async def measure(
    stub: ManagementServiceAsyncStub, namespace: str, fleet: str, pods: int, until: str, seconds: float
) -> list[Row]:
    """Rows of each verb, and of GetStatus, on a fleet of idle agents, in rounds for so many seconds; the
    first round is not counted."""
    rounds = Rounds(stub, pb.Target(namespace=namespace, fleet=fleet), pods, until)
    await rounds.go()
    rounds.samples.clear()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or not rounds.samples:
        await rounds.go()
    return [
        sample.row(verb, _BY, pods=pods, until="" if verb == "status" else until)
        for verb, sample in rounds.samples.items()
    ]


class Rounds:
    """Rounds after which everything is as before, so that each call of a verb changes something."""

    def __init__(self, stub: ManagementServiceAsyncStub, target: pb.Target, pods: int, until: str) -> None:
        self._stub = stub
        self._target = target
        self._pods = pods
        self._stage = STAGES[until]
        self._terms = pb.Terms(reason="load", until=self._stage)
        self._terms.deadline.FromTimedelta(_DEADLINE)
        self.samples: dict[str, Sample] = {}

    async def go(self) -> None:
        """One round."""
        await self._take("pause", self._pause())
        await self._take("status", self._status("paused"))
        await self._take("resume", self._resume())
        await self._take("lame-duck", self._lame_duck(undo=False))
        await self._take("status", self._status("lame_duck"))
        await self._take("undo", self._lame_duck(undo=True))
        await self._take("status", self._status(""))

    async def _take(self, verb: str, answer: Awaitable[str]) -> None:
        sample = self.samples.setdefault(verb, Sample())
        sample.seconds += await sample.take(answer)

    async def _pause(self) -> str:
        answer = await self._stub.Pause(pb.PauseRequest(target=self._target, terms=self._terms))
        return complaint(answer.report, self._pods, self._stage)

    async def _resume(self) -> str:
        answer = await self._stub.Resume(pb.ResumeRequest(target=self._target, terms=self._terms))
        return complaint(answer.report, self._pods, self._stage)

    async def _lame_duck(self, undo: bool) -> str:
        request = pb.LameDuckRequest(target=self._target, terms=self._terms, undo=undo)
        return complaint((await self._stub.LameDuck(request)).report, self._pods, self._stage)

    async def _status(self, held: str) -> str:
        answer = await self._stub.GetStatus(pb.GetStatusRequest(target=self._target))
        return discrepancy(answer.pods, self._pods, held)


def complaint(report: pb.Report, pods: int, stage: pb.Stage.ValueType) -> str:
    """What is wrong with a report: each of so many pods has to have come so far."""
    for each in report.outcomes:
        if each.stage < stage:
            return f"{each.pod}: {pb.Stage.Name(each.stage)} {each.reason} {each.message}"
    count = len({each.pod_uid for each in report.outcomes})
    return "" if count == report.done_count == pods else f"{report.done_count} of {count} pods, not {pods}"


def discrepancy(told: Sequence[pb.PodStatus], pods: int, held: str) -> str:
    """What is wrong with a status: so many pods have to say that they are `held` ("paused", "lame_duck"; "":
    neither), and nothing else."""
    for each in told:
        if each.error or not each.HasField("status"):
            return f"{each.pod}: {each.error or 'no status'}"
        status = each.status
        found = [name for name in ("paused", "lame_duck", "draining") if getattr(status, name)]
        if found != ([held] if held else []):
            return f"{each.pod}: {found or 'not held'}, not {held or 'free'}"
    count = len({each.pod_uid for each in told})
    return "" if count == pods else f"{count} pods, not {pods}"
