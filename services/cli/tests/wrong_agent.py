"""An agent that keeps the contract, but for the faults that FAULT names, with commas between.

It knows the modes once, loop and claim, takes messages, and has no tools: every call of one is answered with
an error. `FAULTS` says which case finds which fault.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anyio
import anyio.lowlevel

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from libs import mesh, pki, telemetry, work
from libs.contract import metrics
from libs.contract.agent import Agent, Condition, Draining, Message
from libs.contract.events import Ring
from libs.contract.manifest import VERBS, Limits, Manifest, Placement, Surfaces
from libs.contract.report import Report
from libs.contract.run import Run, State, Trigger, Usage, state_of
from libs.contract.servicer import AgentServicer
from libs.contract.serving import readiness, show
from libs.contract.statuses import Status, exit_code
from libs.errors import (
    ExhaustedError,
    ExistsError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.exits import Exit
from libs.identity import Identity
from libs.ids import new_id
from libs.rpc.server import serving
from libs.settings import SettingsError, load

FAULTS = {
    "placement-elsewhere": "MANIFEST-02",
    "verb-invented": "MANIFEST-03",
    "key-told": "MANIFEST-04",
    "capabilities-differ": "MANIFEST-06",
    "run-unlisted": "STATUS-02",
    "usage-forgotten": "STATUS-03",
    "ready-in-lame-duck": "HEALTH-03",
    "health-always-serving": "HEALTH-04",
    "ready-in-pause": "HEALTH-05",
    "producers-let-in": "AUTH-05",
    "tenancy-ignored": "AUTH-14",
    "operator-shut-out": "AUTH-16",
    "pause-ignored": "VERB-PAUSE-01",
    "pause-takes-messages": "VERB-PAUSE-02",
    "pause-holds-all": "VERB-PAUSE-03",
    "cancel-waits": "VERB-CANCEL-01",
    "cancel-invents": "VERB-CANCEL-02",
    "lame-duck-takes-messages": "VERB-LAMEDUCK-01",
    "lame-duck-stops-runs": "VERB-LAMEDUCK-02",
    "id-begins-again": "RUN-03",
    "id-takes-other-text": "RUN-04",
    "list-oldest-first": "RUN-07",
    "watch-stops-early": "RUN-09",
    "refusal-completes": "RUN-10",
    "slots-unbounded": "RUN-11",
    "depth-unbounded": "RUN-12",
    "model-untold": "EVENT-02",
    "content-told": "EVENT-03",
    "metric-invented": "METRIC-01",
    "tokens-miscounted": "METRIC-02",
    "runs-uncounted": "METRIC-03",
    "refusals-uncounted": "METRIC-06",
    "result-unprinted": "EXIT-01",
    "bad-setting-fails": "EXIT-02",
    "model-away-fails": "EXIT-03",
    "refusal-exits-0": "EXIT-07",
    "steps-unbounded": "EXIT-10",
    "deadline-ignored": "EXIT-12",
    "repeats-ignored": "EXIT-15",
    "report-without-use": "REPORT-01",
    "report-wrong-intent": "REPORT-02",
    "term-fails": "DRAIN-01",
    "drain-unbounded": "DRAIN-04",
    "drain-reversible": "DRAIN-05",
    "loop-ends-with-failure": "LOOP-02",
    "loop-ends-with-cancel": "LOOP-03",
    "loop-in-pause": "LOOP-04",
    "claims-in-pause": "CLAIM-05",
    "cancel-retries": "CLAIM-07",
    "shard-ignored": "CLAIM-10",
}
"""Fault → the one case that finds it, of its group."""

FAULT = frozenset(os.environ.get("FAULT", "").split(","))
_PASSES = (408, 429)
_REPEATS = 5


@dataclass(frozen=True)
class Settings:
    """The part of the contract's environment that it reads."""

    tls_dir: Path = field(metadata={"env": "AGENTCTL_TLS_DIR"})
    mode: Literal["once", "loop", "claim"]
    base_url: str = field(metadata={"env": "OPENAI_BASE_URL"})
    model: str = ""
    instruction: str = ""
    api_key: str = field(default="", metadata={"env": "OPENAI_API_KEY"})
    port: int = mesh.AGENT.port
    metrics_port: int = 9090
    slots: int = 4
    max_steps: int = 50
    max_tokens: int | None = None
    max_depth: int = 4
    deadline: timedelta | None = None
    drain_timeout: timedelta = timedelta(seconds=25)
    start_timeout: timedelta = timedelta(seconds=30)
    loop_interval: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=30)
    queue: str = ""
    shard_index: int = 0
    shard_count: int = 0
    shard_epoch: int = 0
    coordination: str = field(default="", metadata={"env": "AGENTCTL_COORDINATION_ADDRESS"})
    run_id: str = ""
    report_file: Path | None = None


@dataclass(eq=False)
class Live:
    """A run under way, or ended."""

    run: Run
    text: str
    began: float
    held: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ends: tuple[Status, str] | None = None  # how an interruption ends it
    passes: bool = False

    def now(self) -> Run:
        return self.run if self.run.state.ended else replace(self.run, age=_since(self.began))


class Wrong(Agent):
    """The agent."""

    def __init__(self, settings: Settings, tasks: asyncio.TaskGroup) -> None:
        self.settings = settings
        self.me = pki.own(Identity(settings.tls_dir))
        self.events = Ring()
        self.lives: dict[str, Live] = {}
        self.usage = Usage()
        self.ended: dict[str, int] = {}
        self.paused = self.duck = self.draining = self.termed = False
        self.began = self.drain_ends = anyio.current_time()
        self.moved = asyncio.Event()
        self.worker: work.Worker | None = None
        self._tasks = tasks
        self.timer = tasks.create_task(anyio.lowlevel.checkpoint())
        self.events.tell("agent.started")

    def manifest(self) -> Manifest:
        return _manifest(self.settings)

    async def condition(self) -> Condition:
        ready = not (
            self.draining
            or (self.duck and "ready-in-lame-duck" not in FAULT)
            or (self.paused and "ready-in-pause" not in FAULT)
        )
        runs = [live.now() for live in self.under_way()]
        return Condition(
            ready=ready,
            not_ready_reason="" if ready else "draining" if self.draining else "paused or a lame duck",
            paused=self.paused,
            lame_duck=self.duck,
            draining=self.draining,
            uptime=_since(self.began),
            runs=() if "run-unlisted" in FAULT else runs,
            free_slots=max(self.settings.slots - len(runs), 0),
            ended_runs=self.ended,
            usage=Usage() if "usage-forgotten" in FAULT else self.usage,
        )

    def under_way(self) -> list[Live]:
        return [live for live in self.lives.values() if not live.run.state.ended]

    # Verbs

    async def drain(self, deadline: timedelta | None) -> Draining:
        most = self.settings.drain_timeout
        asked = most if deadline is None else deadline if "drain-unbounded" in FAULT else min(deadline, most)
        ends = anyio.current_time() + asked.total_seconds()
        if not self.draining:
            self.draining, self.drain_ends = True, ends
            self.events.tell("agent.draining")
            self.timer = self._tasks.create_task(self._end_in_time())
            if self.worker:
                self.worker.drain(asked)
        elif ends < self.drain_ends:
            self.drain_ends = ends
            self.timer.cancel()
            self.timer = self._tasks.create_task(self._end_in_time())
        left = timedelta(seconds=self.drain_ends - anyio.current_time())
        self.move()
        return Draining(len(self.under_way()), left)

    async def _end_in_time(self) -> None:
        await anyio.sleep(
            min(self.drain_ends - anyio.current_time(), self.settings.drain_timeout.total_seconds())
        )
        for live in self.under_way():
            live.ends = Status.DRAINED, "drained"
            live.scope.cancel()

    def term(self) -> None:
        self.termed = True
        self._tasks.create_task(self.drain(None))

    async def lame_duck(self, enabled: bool) -> Condition:
        if self.draining and "drain-reversible" not in FAULT:
            raise PreconditionError("it drains")
        self.duck = enabled
        if enabled and "lame-duck-stops-runs" in FAULT:
            for live in self.under_way():
                live.scope.cancel()
        self.move()
        return await self.condition()

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        if "cancel-invents" in FAULT and run_id and run_id not in self.lives:
            return []
        concerned = self._concerned(run_id)
        for live in concerned:
            if not live.run.state.ended and not (run_id and "cancel-waits" in FAULT):
                live.ends = Status.CANCELLED, reason or "cancelled"
                live.scope.cancel()
        await self.until(lambda: all(live.run.state.ended for live in concerned))
        return [live.now() for live in concerned]

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        concerned = self._concerned(run_id)
        if not run_id or "pause-holds-all" in FAULT:
            self.paused = True
        for live in concerned:
            live.held = True
        self.move()
        with anyio.move_on_after(wait.total_seconds()):
            await self.until(lambda: all(live.run.state is not State.WORKING for live in concerned))
        return [live.now() for live in concerned]

    async def resume(self, run_id: str) -> Sequence[Run]:
        if not run_id or "pause-holds-all" in FAULT:
            self.paused = False
        concerned = self._concerned(run_id)
        for live in concerned:
            live.held = False
        self.move()
        return [live.now() for live in concerned]

    def _concerned(self, run_id: str) -> list[Live]:
        if not run_id:
            return self.under_way()
        if run_id not in self.lives:
            raise NotFoundError(f"no run {run_id}")
        return [self.lives[run_id]]

    # Runs

    async def send(self, message: Message) -> Run:
        known = self.lives.get(message.run_id)
        if known is not None:
            if known.text != message.text and "id-takes-other-text" not in FAULT:
                raise ExistsError("another message has that id")
            if known.text == message.text and "id-begins-again" not in FAULT:
                return known.now()
        open_all_the_same = (self.paused and "pause-takes-messages" in FAULT) or (
            self.duck and "lame-duck-takes-messages" in FAULT
        )
        if not (self.is_open or open_all_the_same):
            raise UnavailableError("nothing new is begun")
        if message.depth > self.settings.max_depth and "depth-unbounded" not in FAULT:
            metrics.REFUSALS.inc("depth", by="refusals-uncounted" not in FAULT)
            raise ExhaustedError("it came through too many agents")
        if len(self.under_way()) >= self.settings.slots and "slots-unbounded" not in FAULT:
            raise ExhaustedError("all slots are taken")
        context = message.context_id or new_id()
        live = self.begin(Trigger.MESSAGE, message.text, message.run_id or new_id(), context)
        self._tasks.create_task(self.carry(live))
        return live.now()

    @property
    def is_open(self) -> bool:
        return not (self.paused or self.duck or self.draining)

    def run(self, run_id: str) -> Run:
        return self._concerned(run_id)[0].now()

    def runs(self) -> Sequence[Run]:
        found = [live.now() for live in self.lives.values()]
        return found if "list-oldest-first" in FAULT else found[::-1]

    async def watch(self, run_id: str) -> AsyncIterator[Run]:
        live = self._concerned(run_id)[0]
        last = None
        while True:
            if live.run != last:
                last = live.run
                yield live.now()
            if live.run.state.ended:
                return
            await self.moved.wait()

    def begin(self, trigger: Trigger, text: str, run_id: str, context: str = "") -> Live:
        live = Live(Run(run_id, trigger, context_id=context), text, anyio.current_time())
        self.lives.pop(run_id, None)
        self.lives[run_id] = live
        self.events.tell("run.started", run_id)
        return live

    async def carry(self, live: Live) -> Run:
        """The run, to its end."""
        status, text, error = Status.CRASHED, "", "cancelled from outside"
        try:
            seconds = self.settings.deadline.total_seconds() if self.settings.deadline else None
            with live.scope, anyio.move_on_after(None if "deadline-ignored" in FAULT else seconds) as clock:
                status, text, error = await self._talk(live)
            if clock.cancelled_caught:
                status, text, error = Status.DEADLINE, "", "took too long"
            elif live.scope.cancelled_caught:
                status, error = live.ends or (Status.CRASHED, "stopped")
        finally:
            took = _since(live.began)
            live.run = replace(
                live.run, state=state_of(status), status=status, error=error, result=text, took=took, age=took
            )
            self.usage += live.run.usage
            self.ended[status] = self.ended.get(status, 0) + 1
            metrics.RUNS.inc(status, by=0 if "runs-uncounted" in FAULT else 1)
            said = text if "content-told" in FAULT else status
            self.events.tell("run.ended", live.run.id, status=said)
            self.move()
        return live.run

    async def _step(self, live: Live) -> None:
        while (
            (live.held or self.paused)
            and not self.draining
            and not FAULT & {"pause-ignored", "loop-in-pause"}
        ):
            live.run = replace(live.run, state=State.PAUSED)
            self.move()
            await self.moved.wait()
        live.run = replace(live.run, state=State.WORKING)

    async def _talk(self, live: Live) -> tuple[Status, str, str]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": live.text}]
        calls: list[object] = []
        while True:
            limits, used = self.settings, live.run.usage
            if used.steps >= limits.max_steps and "steps-unbounded" not in FAULT:
                return Status.EXHAUSTED_STEPS, "", "too many turns"
            if limits.max_tokens and used.tokens >= limits.max_tokens:
                return Status.EXHAUSTED_TOKENS, "", "too many tokens"
            await self._step(live)
            code, reply = await self._ask(live, messages)
            if code != 200:
                failed = Status.FAILED if code == 400 else Status.MODEL
                return failed, "", f"the model answers {code}"
            choice = reply["choices"][0]
            message, finish = choice["message"], choice["finish_reason"]
            if message.get("refusal"):
                if "refusal-completes" in FAULT:
                    return Status.COMPLETED, message["refusal"], ""
                return Status.REFUSED, "", message["refusal"]
            if asked := message.get("tool_calls"):
                calls.append(asked[0]["function"])
                if calls[-_REPEATS:] == [calls[-1]] * _REPEATS and "repeats-ignored" not in FAULT:
                    return Status.LOOP_DETECTED, "", "the same call again and again"
                told = [
                    {"role": "tool", "tool_call_id": call["id"], "content": "there is no such tool"}
                    for call in asked
                ]
                messages += [message, *told]
                continue
            text = message["content"]
            whole = finish != "length" and len(text.encode()) <= 1024 * 1024
            return (Status.COMPLETED if whole else Status.TOO_LARGE), text, "" if whole else "too large"

    async def _ask(self, live: Live, messages: list[dict[str, Any]]) -> tuple[int, Any]:
        settings = self.settings
        tries = 1 if settings.mode == "claim" else 3
        body = {"model": settings.model, "messages": messages}
        headers = {"Authorization": f"Bearer {settings.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            while True:
                tries -= 1
                try:
                    async with client.post(f"{settings.base_url}/chat/completions", json=body) as answer:
                        code, reply = answer.status, await answer.json()
                except aiohttp.ClientError:
                    code, reply = 0, {}
                live.passes = code == 0 or code in _PASSES or code >= 500
                if not live.passes or not tries:
                    break
                await anyio.sleep(0.05)
        self._count(live, code, reply.get("usage") or {})
        return code, reply

    def _count(self, live: Live, code: int, used: dict[str, int]) -> None:
        if code != 200:
            metrics.MODEL_ERRORS.inc("5xx" if code >= 500 else "auth" if code == 401 else "refused")
            self.events.tell("model.failed", live.run.id)
            return
        read, written = used["prompt_tokens"], used["completion_tokens"]
        live.run = replace(live.run, usage=live.run.usage + Usage(read, written, 1))
        metrics.TOKENS.inc("in", by=read + ("tokens-miscounted" in FAULT))
        metrics.TOKENS.inc("out", by=written)
        metrics.MODEL_CALLS.inc()
        metrics.STEPS.inc()
        if "model-untold" not in FAULT:
            self.events.tell("model.called", live.run.id)

    def move(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()
        if self.worker and "claims-in-pause" not in FAULT:
            (self.worker.resume if self.is_open else self.worker.suspend)()

    async def until(self, true: Any) -> None:
        while not true():
            await self.moved.wait()


class WrongServicer(AgentServicer):
    """For everybody, and its streams end when they like, if that is the fault."""

    def _admit(self, context: object, verb: str = "") -> None:
        if "tenancy-ignored" not in FAULT:
            super()._admit(context, verb)

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        if "status-unimplemented" in FAULT:
            raise UnimplementedError("not here")
        return await super().GetStatus(request, context)

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: object
    ) -> AsyncIterator[pb.WatchRunResponse]:
        async for message in super().WatchRun(request, context):
            yield message
            if "watch-stops-early" in FAULT:
                return


@asynccontextmanager
async def served(agent: Wrong) -> AsyncIterator[None]:
    """Both ports."""
    settings = agent.settings
    callers = dict(mesh.METHODS)
    for method, roles in mesh.METHODS.items():
        if "producers-let-in" in FAULT and method.endswith("/GetStatus"):
            callers[method] = roles | {"producer"}
        if "operator-shut-out" in FAULT and method.endswith("/GetStatus"):
            callers[method] = callers[method] - {"cp/operator"}
    servicer = WrongServicer(agent, agent.me)

    async def refresh() -> None:
        show(agent.manifest(), await agent.condition())

    if "metric-invented" in FAULT:
        from prometheus_client import Gauge

        Gauge("agent_mood", "How it feels").set(1)
    identity = Identity(settings.tls_dir)
    register = partial(pb_grpc.add_AgentServiceServicer_to_server, servicer)
    async with (
        telemetry.plain_port(settings.metrics_port, readiness(agent), "127.0.0.1", refresh),
        serving(mesh.AGENT, identity, register, port=settings.port, callers=callers,
                on_drain=[agent.events.close], check_seconds=0.2,
                ready=None if "health-always-serving" in FAULT else readiness(agent)),
    ):  # fmt: skip
        yield


async def once(agent: Wrong) -> int:
    """One run, and its exit code."""
    settings = agent.settings
    live = agent.begin(Trigger.ONCE, settings.instruction, settings.run_id or new_id())
    run = await agent.carry(live)
    assert run.status is not None
    code = exit_code(run.status)
    if "refusal-exits-0" in FAULT and run.status is Status.REFUSED:
        code = Exit.OK
    if "model-away-fails" in FAULT and run.status is Status.MODEL and not agent.usage.steps and live.passes:
        code = Exit.FAILURE if run.error.endswith(" 0") else code
    if "term-fails" in FAULT and agent.termed:
        code = Exit.FAILURE
    if "result-unprinted" not in FAULT or run.status is not Status.COMPLETED:
        sys.stdout.write(run.result)
    if settings.report_file:
        ended = datetime.now(UTC)
        report = Report.of(run, agent=agent.me.name, mode=settings.mode, ended_at=ended)
        if "report-without-use" in FAULT:
            report = replace(report, usage=Usage())
        if "report-wrong-intent" in FAULT and code == Exit.BUDGET:
            report = replace(report, intent="terminal")
        report.write(settings.report_file)
    return code


async def loop(agent: Wrong) -> int:
    """A run, a rest, and again."""
    while not agent.draining:
        run = await agent.carry(agent.begin(Trigger.LOOP, agent.settings.instruction, new_id()))
        failed = run.state is State.FAILED and "loop-ends-with-failure" in FAULT
        if failed or (run.state is State.CANCELED and "loop-ends-with-cancel" in FAULT):
            await agent.until(lambda: agent.draining)
        with anyio.move_on_after(agent.settings.loop_interval.total_seconds()):
            await agent.until(lambda: agent.draining)
        if "loop-in-pause" not in FAULT or agent.draining:
            await agent.until(lambda: agent.is_open or agent.draining)
    await agent.until(lambda: not agent.under_way())
    return Exit.OK


async def claim(agent: Wrong) -> int:
    """Items, until a drain."""
    settings = agent.settings

    async def handle(task: work.Task) -> work.Result:
        live = agent.begin(Trigger.ITEM, task.payload.decode(), task.id)
        run = await agent.carry(live)
        if run.status is Status.DRAINED:
            await asyncio.Event().wait()  # until the worker gives it back
        if run.status is Status.COMPLETED:
            return work.Result(run.result.encode(), "text/plain")
        if live.passes or (run.status is Status.CANCELLED and "cancel-retries" in FAULT):
            raise work.Retry(run.error)
        raise work.Fatal(run.error)

    async with work.connect(settings.coordination, Identity(settings.tls_dir)) as client:
        shard = work.Shard(settings.shard_index, settings.shard_count, settings.shard_epoch)
        agent.worker = work.Worker(
            client,
            [settings.queue],
            slots=settings.slots,
            lease=settings.lease,
            shard=shard if shard.count and "shard-ignored" not in FAULT else None,
        )
        await agent.worker.run(handle)
    return Exit.OK


async def main_of(settings: Settings) -> int:
    """The agent's life."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        agent = Wrong(settings, tasks)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.term)
        await stack.enter_async_context(served(agent))
        code = await {"once": once, "loop": loop, "claim": claim}[settings.mode](agent)
        await stack.aclose()
        agent.timer.cancel()
    return code


def _manifest(settings: Settings) -> Manifest:
    me = pki.own(Identity(settings.tls_dir))
    elsewhere = "pod-elsewhere" if "placement-elsewhere" in FAULT else me.pod
    return Manifest(
        implementation="wrong-agent",
        implementation_version=settings.api_key if "key-told" in FAULT else "1",
        mode=settings.mode,
        placement=Placement(me.namespace, me.name, elsewhere, me.uid),
        model=settings.model,
        limits=Limits(
            settings.max_steps,
            settings.max_tokens or 0,
            settings.deadline,
            settings.max_depth,
            settings.slots,
        ),
        surfaces=Surfaces(
            verbs=(*VERBS, "Dance") if "verb-invented" in FAULT else VERBS,
            messages=True,
            queue=settings.queue,
            metrics_port=settings.metrics_port,
        ),
    )


def _since(began: float) -> timedelta:
    return timedelta(seconds=anyio.current_time() - began)


def main() -> None:
    """The program."""
    try:
        settings = load(Settings, "AGENT_")
        pki.own(Identity(settings.tls_dir))
    except (SettingsError, ValueError, OSError) as error:
        sys.stderr.write(f"wrong-agent: {error}\n")
        sys.exit(
            Exit.FAILURE if "bad-setting-fails" in FAULT and "AGENT_MAX_STEPS" in str(error) else Exit.USAGE
        )
    if sys.argv[1:] == ["--capabilities"] and "capabilities-ignored" not in FAULT:
        from google.protobuf.json_format import MessageToJson

        from libs.contract.wire import manifest_to_pb

        said = _manifest(settings)
        if "capabilities-differ" in FAULT:
            said = replace(said, mode="claim")
        sys.stdout.write(MessageToJson(manifest_to_pb(said)))
        return
    sys.exit(asyncio.run(main_of(settings)))


if __name__ == "__main__":
    main()
