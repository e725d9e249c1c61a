"""The operator's verbs: bare JSON-RPC methods whose answer says what was asked for, not what happened."""

from __future__ import annotations

from collections.abc import Callable

from . import clock
from .exits import Json
from .rpc import INVALID_PARAMS, RpcError
from .served import Served
from .supervisor import Supervisor

METHODS = ("a2a.Drain", "a2a.LameDuck", "a2a.Pause", "a2a.Resume", "a2a.Cancel")


class Verbs:
    """Drain and lame-duck reach the process; pause and cancel only served runs that nobody waits for."""

    def __init__(self, supervisor: Supervisor, served: Served) -> None:
        self._supervisor = supervisor
        self._served = served
        self._methods: dict[str, Callable[[Json], Json]] = dict(
            zip(METHODS, (self._drain, self._lame_duck, self._pause, self._resume, self._cancel), strict=True)
        )

    def call(self, method: str, params: Json) -> Json:
        """Raises RpcError."""
        return self._methods[method](params)

    def _drain(self, params: Json) -> Json:
        deadline = params.get("deadline_ms")
        if deadline is None:
            return self._supervisor.drain()
        if not isinstance(deadline, int) or isinstance(deadline, bool) or deadline < 0:
            raise RpcError(INVALID_PARAMS, "deadline_ms is not a number of milliseconds")
        return self._supervisor.drain(deadline / 1000)

    def _lame_duck(self, params: Json) -> Json:
        supervisor = self._supervisor
        ready = params.get("ready", False)
        if not isinstance(ready, bool):
            raise RpcError(INVALID_PARAMS, "ready is not a boolean")
        if ready and supervisor.draining:
            raise RpcError(INVALID_PARAMS, "a drain cannot be taken back")
        since = supervisor.lame_since or clock.now()
        supervisor.lame_since = None if ready else since
        return {"ready": supervisor.ready, "since": since, "in_flight": len(supervisor.children)}

    def _pause(self, params: Json) -> Json:
        return self._hold(True)

    def _resume(self, params: Json) -> Json:
        return self._hold(False)

    def _hold(self, paused: bool) -> Json:
        runs = [run for run in self._served.reachable if run.task.control.paused != paused]
        for run in runs:
            if paused:
                run.task.control.pause()
            else:
                run.task.control.resume()
        self._supervisor.paused = paused
        return {"paused": paused, "affected": len(runs)}

    def _cancel(self, params: Json) -> Json:
        handle = params.get("handle")
        count = self._served.cancel(handle)
        if handle in (None, "0"):
            return {"handle": "0", "cancelled": count > 0, "subtree_size": count}
        return {"handle": handle, "cancelled": count > 0}
