"""The agent's life: wait for its servers, work, drain. All effects; what they mean is in `run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from prometheus_client import Counter

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs import telemetry
from libs.errors import InvalidError, MeshError, NotFoundError, UnavailableError
from libs.exits import Exit
from libs.identity import Principal
from libs.work import Client, Fatal, Result, Retry, Task, Worker

from .model import Model
from .run import Answer, Failure, Fault, document, request
from .settings import Settings

GRANTED = Counter("agent_claims_granted_total", "Items that this agent was given")
LOST = Counter("agent_claims_lost_total", "Items whose lease ended before their run did")
RELEASED = Counter("agent_claims_released_total", "Items given back unfinished")
ITEMS = Counter("agent_items_total", "Runs that ended, by outcome", ["outcome"])
MODEL_CALLS = Counter("agent_model_calls_total", "Calls of the model, by outcome", ["outcome"])
TOKENS = Counter("agent_tokens_total", "Tokens that the model counted", ["type"])
DRAINS = Counter("agent_drains_total", "Drains, by phase", ["phase"])

_RESULT_TYPE = "text/plain; charset=utf-8"
_CHECK_SECONDS = 5.0
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # between two looks at a server that is not there yet
_log = logging.getLogger("agent")


class Agent:
    """One process's worth of work. `run` once."""

    def __init__(
        self, settings: Settings, instruction: str, client: Client, model: Model, me: Principal
    ) -> None:
        self._settings = settings
        self._me = me
        self._instruction = instruction
        self._client = client
        self._model = model
        self._worker = Worker(client, [settings.queue], slots=settings.slots, lease=settings.lease)
        self._working = False
        self._stops = 0
        self._stopping = asyncio.Event()
        self._unusable: Failure | None = None

    async def run(self) -> Exit:
        """Work until `stop`, or until the agent cannot do its work any more."""
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._start())
            stopping = tasks.create_task(self._stopping.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            stopping.cancel()
        if not starting.cancelled() and (missing := starting.result()):
            return missing
        if self._stopping.is_set():
            return Exit.OK
        await self._take_back()
        self._working = True
        _log.info("working", extra={"queue": self._settings.queue, "slots": self._settings.slots})
        try:
            await self._worker.run(self.handle)
        except MeshError as error:  # claims are refused, and no retry can mend it
            _log.error("may not claim", extra={"reason": str(error)})
            return Exit.USAGE if isinstance(error, InvalidError | NotFoundError) else Exit.SERVER
        if self._unusable:
            _log.error("stopped: no item can be done", extra={"reason": self._unusable.error})
            return Exit.INTELLIGENCE
        DRAINS.labels("completed").inc()
        _log.info("drained")
        return Exit.OK

    async def _take_back(self) -> None:
        """A process of this pod that was killed held items; nobody needs to wait for their leases to end."""
        me = self._me
        request = pb.ReleaseWorkerRequest(namespace=me.namespace, pod_uid=me.uid, reason="started again")
        try:
            if count := (await self._client.stub.ReleaseWorker(request)).released_count:
                _log.info("gave back what a killed process of this pod held", extra={"items": count})
        except MeshError as error:  # then they end by themselves
            _log.warning("cannot give back what this pod held", extra={"reason": str(error)})

    def stop(self) -> None:
        """Claim no more and finish what is begun within the drain timeout; the second time, give it back."""
        self._stops += 1
        DRAINS.labels("started" if self._stops == 1 else "forced").inc()
        _log.info("draining", extra={"forced": self._stops > 1})
        self._stopping.set()
        self._worker.drain(self._settings.drain_timeout if self._stops == 1 else timedelta(0))

    async def ready(self) -> None:
        """UnavailableError unless it is working and coordination answers."""
        if not self._working or self._stopping.is_set():
            raise UnavailableError("draining" if self._stopping.is_set() else "starting")
        await self._look()

    async def handle(self, task: Task) -> Result:
        """One item, from payload to result."""
        GRANTED.inc()
        try:
            with telemetry.tracer().start_as_current_span("run item") as span:
                span.set_attribute("agentctl.item.id", task.id)
                return self._settle(await self._answer(task.payload))
        except asyncio.CancelledError:
            (LOST if task.lost else RELEASED).inc()
            ITEMS.labels("lost" if task.lost else "released").inc()
            raise

    async def _answer(self, payload: bytes) -> Answer | Failure:
        text = document(payload)
        if isinstance(text, Failure):
            return text
        answer = await self._model.complete(request(self._settings.model, self._instruction, text))
        if isinstance(answer, Answer):
            MODEL_CALLS.labels("ok").inc()
            TOKENS.labels("in").inc(answer.input_tokens)
            TOKENS.labels("out").inc(answer.output_tokens)
            return answer
        MODEL_CALLS.labels(answer.kind).inc()
        if answer.fault is Fault.AGENT:
            await self._give_up(answer)
        return answer

    def _settle(self, answer: Answer | Failure) -> Result:
        if isinstance(answer, Answer):
            ITEMS.labels("completed").inc()
            return Result(answer.text.encode(errors="replace"), _RESULT_TYPE)
        if answer.fault is Fault.ITEM:
            ITEMS.labels("failed").inc()
            raise Fatal(answer.error)
        ITEMS.labels("retried").inc()
        raise Retry(answer.error, answer.retry_after)

    async def _give_up(self, failure: Failure) -> None:
        """Stop without harming an item: this run waits to be cancelled, which releases it, uncounted."""
        self._unusable = failure
        self._worker.drain(timedelta(0))
        await asyncio.Event().wait()

    async def _start(self) -> Exit | None:
        """Which server is missing, if one stays away; a model that is away is reported first."""
        async with asyncio.TaskGroup() as tasks:
            model = tasks.create_task(self._await("model", self._look_at_model))
            coordination = tasks.create_task(self._await("coordination", self._look))
        if not model.result():
            return Exit.INTELLIGENCE
        return None if coordination.result() else Exit.SERVER

    async def _await(self, server: str, look: Callable[[], Awaitable[None]]) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.start_timeout.total_seconds()
        pauses = iter(_PAUSES)
        while True:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await look()
            except (MeshError, OSError) as error:  # TimeoutError is an OSError
                pause = next(pauses, _PAUSES[-1])
                over = loop.time() + pause > until
                reason = str(error) or "no answer in time"
                _log.log(
                    logging.ERROR if over else logging.WARNING, f"{server} is away", extra={"reason": reason}
                )
                if over:
                    return False
                await asyncio.sleep(pause)
            else:
                return True

    async def _look(self) -> None:
        await self._client.stub.GetQueues(pb.GetQueuesRequest(queues=[self._settings.queue]))

    async def _look_at_model(self) -> None:
        if failure := await self._model.check():
            raise UnavailableError(failure.error)
