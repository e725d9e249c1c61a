"""Any agent as `agentctl.agent.v1.AgentService`: bounds, tenancy, paging, waiting. The meaning is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import anyio

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from agentctl.agent.v1 import run_pb2
from libs.errors import NotFoundError, PreconditionError, UnimplementedError
from libs.identity import Principal
from libs.rpc.call import Call

from . import checks, wire
from .agent import Agent, Message
from .run import Run

_MARGIN = timedelta(milliseconds=200)  # an answer that waits leaves this long before the caller's deadline


class AgentServicer(pb_grpc.AgentServiceServicer):
    """The servicer of `agent`, which belongs to `owner`: users of other namespaces do not see it.

    What the manifest does not name is UNIMPLEMENTED. Verbs and lists answer runs without their results.
    """

    def __init__(self, agent: Agent, owner: Principal) -> None:
        self._agent = agent
        self._owner = owner

    # --- What it is and does ---

    async def GetManifest(self, request: pb.GetManifestRequest, context: object) -> pb.GetManifestResponse:
        self._admit(context)
        return pb.GetManifestResponse(manifest=wire.manifest_to_pb(self._agent.manifest()))

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        self._admit(context)
        return wire.condition_to_pb(await self._agent.condition())

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        self._admit(context)
        after = checks.natural(request.after_sequence, "after_sequence")
        prefixes = checks.prefixes(request.name_prefixes)
        if not self._agent.manifest().surfaces.events:
            raise UnimplementedError("this agent tells no events")
        last = self._agent.events.last
        if after > last:
            raise PreconditionError(f"the last event is {last}, not {after}: it began anew, ask from 0")
        async for event, dropped in self._agent.events.watch(after, prefixes):
            yield pb.WatchEventsResponse(event=wire.event_to_pb(event), dropped_count=dropped)

    # --- Verbs ---

    async def Drain(self, request: pb.DrainRequest, context: object) -> pb.DrainResponse:
        self._admit(context, "Drain")
        draining = await self._agent.drain(checks.span(request, "deadline"))
        return pb.DrainResponse(
            run_count=draining.run_count,
            remaining=wire.duration(max(draining.remaining, timedelta(0))),
        )

    async def LameDuck(self, request: pb.LameDuckRequest, context: object) -> pb.LameDuckResponse:
        self._admit(context, "LameDuck")
        condition = await self._agent.lame_duck(request.enabled)
        return pb.LameDuckResponse(ready=condition.ready, run_count=len(condition.runs))

    async def Cancel(self, request: pb.CancelRequest, context: object) -> pb.CancelResponse:
        self._admit(context, "Cancel")
        run_id = checks.run_id(request.run_id, may_be_empty=True)
        reason = checks.text(request.reason, "reason", checks.MAX_REASON_BYTES)
        runs = await self._agent.cancel(run_id, reason)
        return pb.CancelResponse(runs=[wire.run_to_pb(run, with_result=False) for run in runs])

    async def Pause(self, request: pb.PauseRequest, context: object) -> pb.PauseResponse:
        self._admit(context, "Pause")
        run_id = checks.run_id(request.run_id, may_be_empty=True)
        wait = checks.span(request, "wait", checks.MAX_WAIT)
        runs = await self._agent.pause(run_id, _bounded(checks.MAX_WAIT if wait is None else wait, context))
        return pb.PauseResponse(runs=[wire.run_to_pb(run, with_result=False) for run in runs])

    async def Resume(self, request: pb.ResumeRequest, context: object) -> pb.ResumeResponse:
        self._admit(context, "Resume")
        runs = await self._agent.resume(checks.run_id(request.run_id, may_be_empty=True))
        return pb.ResumeResponse(runs=[wire.run_to_pb(run, with_result=False) for run in runs])

    # --- Messages and runs ---

    async def SendMessage(self, request: pb.SendMessageRequest, context: object) -> pb.SendMessageResponse:
        self._admit(context)
        message = Message(
            text=checks.text(request.text, "text", checks.MAX_TEXT_BYTES, 1),
            run_id=checks.run_id(request.run_id, may_be_empty=True),
            context_id=checks.text(request.context_id, "context_id", checks.MAX_CONTEXT_BYTES),
            depth=checks.natural(request.depth, "depth"),
        )
        wait = checks.span(request, "wait", checks.MAX_WAIT) or timedelta(0)
        if not self._agent.manifest().surfaces.messages:
            raise UnimplementedError("this agent takes no messages")
        run = await self._agent.send(message)
        return pb.SendMessageResponse(run=wire.run_to_pb(await self._ended(run, _bounded(wait, context))))

    async def GetRun(self, request: pb.GetRunRequest, context: object) -> pb.GetRunResponse:
        self._admit(context)
        return pb.GetRunResponse(run=wire.run_to_pb(self._agent.run(checks.run_id(request.run_id))))

    async def ListRuns(self, request: pb.ListRunsRequest, context: object) -> pb.ListRunsResponse:
        self._admit(context)
        conversation = checks.text(request.context_id, "context_id", checks.MAX_CONTEXT_BYTES)
        state = wire.state_from_pb(request.state)
        if state is None and request.state != run_pb2.RUN_STATE_UNSPECIFIED:
            raise checks.invalid("state", "must be a state of the contract, or UNSPECIFIED")
        size = checks.page_size(request.page_size)
        left = self._behind(request.page_token)
        response = pb.ListRunsResponse()
        for n, run in enumerate(left, start=1):
            if (conversation and run.context_id != conversation) or (state and run.state is not state):
                continue
            response.runs.append(wire.run_to_pb(run, with_result=False))
            if len(response.runs) == size and n < len(left):
                response.next_page_token = checks.page_token(len(left) - n, run.id)
                break
        return response

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: object
    ) -> AsyncIterator[pb.WatchRunResponse]:
        self._admit(context)
        async for run in self._agent.watch(checks.run_id(request.run_id)):
            yield pb.WatchRunResponse(run=wire.run_to_pb(run))
            if run.state.ended:
                return

    def _admit(self, context: object, verb: str = "") -> None:
        caller = Call.of(context).caller
        if caller.namespace not in ("", self._owner.namespace):
            raise NotFoundError(f"no agent {self._owner.namespace}/{self._owner.name}")
        if verb and verb not in self._agent.manifest().surfaces.verbs:
            raise UnimplementedError(f"this agent has no {verb}")

    def _behind(self, token: str) -> list[Run]:
        """The runs of the pages from here on. New runs come in front, and the oldest go first; if the one
        that the last page ended with is gone, a run may be shown again, but none is left out."""
        runs = list(self._agent.runs())
        if not token:
            return runs
        remaining, last_id = checks.page_place(token)
        for n, run in enumerate(runs, start=1):
            if run.id == last_id and len(runs) - n <= remaining:  # it may be a newer one of the same id
                return runs[n:]
        return runs[-remaining:] if remaining else []

    async def _ended(self, run: Run, wait: timedelta) -> Run:
        """The run at its end, or as it is when the wait is over."""
        if run.state.ended or wait <= timedelta(0):
            return run
        with anyio.move_on_after(wait.total_seconds()):
            async for now in self._agent.watch(run.id):
                if now.state.ended:
                    return now
        return self._agent.run(run.id)


def _bounded(wait: timedelta, context: object) -> timedelta:
    """The wait, if the call's own deadline leaves so much."""
    left = Call.of(context).time_remaining()
    if left >= wait.total_seconds() + _MARGIN.total_seconds():
        return wait
    return max(timedelta(seconds=left) - _MARGIN, timedelta(0))
