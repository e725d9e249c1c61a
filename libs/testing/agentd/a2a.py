"""A2A 1.0 over JSON-RPC: six methods, tasks of served runs, an artifact only of a completed one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from .exits import TASK_STATE_OF_STATUS, Json
from .rpc import INTERNAL, INVALID_PARAMS, NOT_CANCELABLE, Request, RpcError, text
from .served import Served, ServedRun

METHODS = ("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "ListTasks", "SubscribeToTask")
STREAMING = ("SendStreamingMessage", "SubscribeToTask")


def method_of(name: str) -> str | None:
    """The method of a name, with or without the older `a2a.` before it."""
    bare = name.removeprefix("a2a.")
    return bare if bare in METHODS else None


class A2a:
    """The methods. Whatever cannot be done is an RpcError."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def call(self, method: str, params: Json) -> Json:
        """One of the four that are answered at once or, for SendMessage, at the run's end."""
        if method == "SendMessage":
            return await self._send(params)
        if method == "ListTasks":
            return {"tasks": [task_of(run) for run in self._served.known]}
        run = self._served.get(text(params, "id"))
        if method == "CancelTask":
            return self._cancel(run)
        return task_of(run)

    def open(self, request: Request, method: str) -> AsyncIterator[Json]:
        """The frames of a stream: nothing is sent before the run is known to be there. Raises RpcError."""
        if method == "SubscribeToTask":
            run = self._served.get(text(request.params, "id"))
        else:
            run = self._begin(request.params)
        return _frames(run, request.answer)

    async def _send(self, params: Json) -> Json:
        configuration = params.get("configuration")
        if isinstance(configuration, dict) and configuration.get("returnImmediately"):
            return {"task": task_of(self._begin(params))}
        run = self._served.begin(instruction_of(params), reachable=False)
        if run is None:
            raise RpcError(INTERNAL, "spawn refused")
        await run.ended.wait()
        return {"task": task_of(run)}

    def _begin(self, params: Json) -> ServedRun:
        run = self._served.begin(instruction_of(params), reachable=True)
        if run is None:
            raise RpcError(INTERNAL, "spawn refused")
        return run

    def _cancel(self, run: ServedRun) -> Json:
        """Says CANCELED at once; what the turn in progress produces is still the task's end."""
        if run.outcome:
            raise RpcError(NOT_CANCELABLE, "the task has ended")
        if run.is_reachable:
            run.task.control.cancel()
        task = task_of(run)
        task["status"]["state"] = TASK_STATE_OF_STATUS["cancelled"]
        return task


def instruction_of(params: Json) -> str:
    """The text parts of the message, a line each. Raises RpcError without one."""
    message = params.get("message")
    parts = message.get("parts") if isinstance(message, dict) else None
    listed = parts if isinstance(parts, list) else []
    texts = [part["text"] for part in listed if isinstance(part, dict) and part.get("text")]
    instruction = "\n".join(str(part) for part in texts)
    if not instruction.strip():
        raise RpcError(INVALID_PARAMS, "the message has no text")
    return instruction


def task_of(run: ServedRun) -> Json:
    """The task of a run."""
    task = {**_ids(run, "id"), "status": _status(run)}
    if run.status == "completed":
        task["artifacts"] = [_artifact(run)]
    return task


async def _frames(run: ServedRun, envelope: Callable[[Json], Json]) -> AsyncIterator[Json]:
    if run.outcome is None:
        yield envelope({"statusUpdate": {**_ids(run, "taskId"), "status": _status(run)}})
        await run.ended.wait()
    if run.status == "completed":
        artifact = {**_ids(run, "taskId"), "artifact": _artifact(run), "lastChunk": True}
        yield envelope({"artifactUpdate": artifact})
    yield envelope({"statusUpdate": {**_ids(run, "taskId"), "status": _status(run)}})


def _ids(run: ServedRun, name: str) -> Json:
    return {name: run.task.handle, "contextId": f"ctx-{run.task.handle}"}


def _status(run: ServedRun) -> Json:
    return {"state": TASK_STATE_OF_STATUS[run.status], "timestamp": run.changed_at}


def _artifact(run: ServedRun) -> Json:
    return {"artifactId": f"{run.task.handle}.distillate", "parts": [{"text": run.text}]}
