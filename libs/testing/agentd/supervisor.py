"""The lifecycle: runs begun and ended, readiness, and the one-way drain."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from . import clock, exits
from .exits import Json
from .journal import Journal
from .metrics import Metrics
from .options import Options
from .turns import Outcome, Runner, Task

TICK = 0.2
_STALE_TICK = 5.0
_OVERTIME = 60.0  # past its deadline a run is ended from outside
_KILL_GRACE = 1.0
SERVED_AT_ONCE = 4


@dataclass
class Child:
    """A run in progress."""

    task: Task
    work: asyncio.Task[Outcome]


class Supervisor:
    """Owns what is running. Nothing is begun once the drain latch is set."""

    def __init__(self, options: Options, journal: Journal, metrics: Metrics, runner: Runner) -> None:
        self.options = options
        self.journal = journal
        self.metrics = metrics
        self.runner = runner
        self.begun = time.monotonic()
        self.children: list[Child] = []
        self.spawned = 0
        self.models: list[str] | None = None  # what the first endpoint says it has, once it was asked
        self.paused = False
        self.lame_since: str | None = None
        self.drain_started: str | None = None
        self.exiting = asyncio.Event()  # the listener's open streams end
        self._latch = asyncio.Event()
        self._force = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._drain_budget = options.drain_timeout
        self._last_tick = time.monotonic()

    @property
    def draining(self) -> bool:
        """Whether the latch is set."""
        return self._latch.is_set()

    @property
    def ready(self) -> bool:
        """Which is what /readyz says."""
        return not self.draining and self.lame_since is None

    @property
    def tick_age(self) -> float:
        """Seconds since the supervisor last ticked."""
        return time.monotonic() - self._last_tick

    @property
    def healthy(self) -> bool:
        """Which is what /healthz says."""
        return not self.draining and self.tick_age < _STALE_TICK

    def tick(self) -> None:
        """Every 200 ms: the heartbeat, and gauges."""
        self._last_tick = time.monotonic()
        metrics, active = self.metrics, len(self.children)
        metrics.put("agent_up", 1)
        metrics.put("agent_ready", self.ready)
        metrics.put("agent_paused", self.paused)
        metrics.put("agent_active_subagents", active)
        metrics.put("agent_tree_depth", min(active, 1))
        metrics.put("agent_tree_breadth", active)
        metrics.put("agent_saturation", min(1.0, active / SERVED_AT_ONCE))

    async def run(self, task: Task) -> Outcome:
        """Runs to the end; more than a minute past its deadline a run is stopped: exit code 124."""
        if self.draining:
            task.control.cancel()
        self.spawned += 1
        self.metrics.add("agent_runs_started_total")
        self.metrics.add("agent_subagents_spawned_total")
        self.journal.emit("info", "subagent.spawn", agent_id=task.handle, agent_path=_path(task))
        child = Child(task, asyncio.create_task(self.runner.run(task)))
        self.children.append(child)
        self._idle.clear()
        try:
            outcome = await self._watch(child)
        finally:
            self.children.remove(child)
            if not self.children:
                self._idle.set()
        self._account(task, outcome)
        return outcome

    async def _watch(self, child: Child) -> Outcome:
        done, _ = await asyncio.wait({child.work}, timeout=self.options.deadline + _OVERTIME)
        if not done:
            child.work.cancel()
            await asyncio.wait({child.work})
            self.metrics.add("agent_runs_killed_total")
            return Outcome("deadline", exits.TIMEOUT, child.task.text)
        if child.work.cancelled():
            self.metrics.add("agent_runs_killed_total")
            return Outcome.of("crashed", child.task.text)
        return child.work.result()

    def _account(self, task: Task, outcome: Outcome) -> None:
        metrics = self.metrics
        metrics.add("agent_runs_total", outcome.status)
        metrics.add("agent_subagents_exited_total", outcome.status)
        completed = outcome.status == "completed"
        metrics.add("agent_runs_completed_total" if completed else "agent_runs_failed_total")
        metrics.add("agent_tokens_total", "in", task.tokens_in)
        metrics.add("agent_tokens_total", "out", task.tokens_out)
        metrics.add("agent_tokens_input_total", by=task.tokens_in)
        metrics.add("agent_tokens_output_total", by=task.tokens_out)
        if limit := exits.LIMIT_OF_STATUS.get(outcome.status):
            metrics.add("agent_limit_exceeded_total", limit)
        self.journal.emit(
            "info",
            "subagent.exit",
            agent_id=task.handle,
            agent_path=_path(task),
            status=outcome.status,
            exit_code=outcome.exit_code,
        )

    def drain(self, budget: float | None = None) -> Json:
        """Sets the latch, cancels every run at its next boundary; answers as `a2a.Drain` does."""
        if not self.draining:
            if budget is not None:
                self._drain_budget = min(budget, self._drain_budget)
            self.drain_started = clock.now()
            self._latch.set()
            self.metrics.add("agent_drains_total", "started")
            self.journal.emit("info", "proc.shutdown", phase="draining", in_flight=len(self.children))
            self.tick()
            for child in self.children:
                child.task.control.cancel()
        return {
            "draining": True,
            "in_flight": len(self.children),
            "eta_ms": round(self._drain_budget * 1000) if self.children else 0,
            "drain_timeout_ms": round(self.options.drain_timeout * 1000),
            "started_at": self.drain_started,
        }

    def terminate(self) -> None:
        """SIGTERM: the first drains, the second stops every run at once."""
        if self.draining:
            self._force.set()
        self.drain()

    async def latched(self, within: float) -> bool:
        """Waits for the latch; False when the time is over first."""
        try:
            async with asyncio.timeout(within):
                await self._latch.wait()
        except TimeoutError:
            return False
        return True

    async def drained(self) -> None:
        """After the latch: the runs end by themselves, or are stopped when the time is over."""
        await self._latch.wait()
        await asyncio.sleep(TICK)
        await self._ended(self._drain_budget)
        await self._ended(_KILL_GRACE)
        for child in self.children:
            self.journal.emit("warn", "subagent.signal", agent_id=child.task.handle, signal="SIGKILL")
            child.work.cancel()
        await self._idle.wait()
        self.metrics.add("agent_drains_total", "forced" if self._force.is_set() else "completed")

    async def _ended(self, within: float) -> None:
        """Until no run is left, this time is over, or a second SIGTERM came."""
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._force)]
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def discover(self) -> list[str]:
        """The models, asked for at the first read that tells of them, and again while there is no answer."""
        if not self.models:
            self.models = await self.runner.model.models()
        return self.models

    def inventory(self) -> Json:
        """The body of `agent://inventory`."""
        nodes = [
            {
                "handle": child.task.handle,
                "depth": 1,
                "kind": "reaction" if child.task.context else "run",
                "status": "running",
                "paused": child.task.control.paused,
                "usage": {
                    "tokens_in": child.task.tokens_in,
                    "tokens_out": child.task.tokens_out,
                    "steps": child.task.steps,
                },
                "last_event_ms": round((time.monotonic() - child.task.touched) * 1000),
            }
            for child in self.children
        ]
        return {
            "run_id": self.options.run_id,
            "mode": self.options.mode,
            "draining": self.draining,
            "paused": self.paused,
            "ready": self.ready,
            "totals": {"active": len(nodes), "total_spawned": self.spawned, "depth": min(len(nodes), 1)},
            "nodes": nodes,
        }


def _path(task: Task) -> str:
    return "0" if task.handle == "0" else f"0/{task.handle}"
