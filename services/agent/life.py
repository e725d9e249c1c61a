"""A process's life: wait for the servers, work, finish, say how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

from libs.contract.run import Run, Trigger, state_of
from libs.contract.statuses import Status, exit_code
from libs.errors import NotFoundError
from libs.exits import Exit

from .order import Ended
from .starting import Needs
from .steering import ReferenceAgent

_log = logging.getLogger("agent")


@dataclass(frozen=True, slots=True)
class Life:
    """Of an agent with its needs."""

    agent: ReferenceAgent
    needs: Needs

    async def serve(self, mode: Callable[[], Awaitable[Exit]]) -> Exit:
        """Works until a drain, or until it cannot."""
        async with self.agent:
            if missing := await self._start():
                return exit_code(missing.status)
            return Exit.OK if self.agent.desk.draining else await mode()

    async def end(self, mode: Callable[[], Awaitable[Ended]], result: Result) -> Exit:
        """Does the one run that it is there for; what became of it is told, however it ends."""
        ended = Ended(Status.CRASHED, error="a fault of the agent's own; its log says more")
        async with self.agent:
            try:
                ended = await self._start() or await mode()
            finally:
                text = result.tell(self.agent, ended)
            await self._say(text)
            return exit_code(ended.status)

    async def _say(self, text: str) -> None:
        """To stdout. Whoever reads it is waited for, but not past the end of a drain."""
        if not text or sys.stdout is None:  # the process may have begun without
            return
        desk = self.agent.desk
        writing = asyncio.wrap_future(_written(sys.stdout.fileno(), text.encode(errors="replace") + b"\n"))
        writing.add_done_callback(lambda _: desk.wake())
        await desk.until(lambda: writing.done() or self.agent.is_cut_off)
        reason = writing.exception() if writing.done() else "nobody has read it"
        if reason:
            _log.error("cannot write the result", extra={"reason": str(reason)})

    async def _start(self) -> Ended | None:
        """What is missing. A drain ends the waiting for it."""
        missing = await self.agent.desk.unless_drained(self.needs.missing)
        if missing is None and not self.agent.desk.draining:
            self.agent.started()
        return missing


@dataclass(frozen=True, slots=True)
class Result:
    """What is told of the only run."""

    run_id: str
    trigger: Trigger
    report_file: Path | None

    def tell(self, agent: ReferenceAgent, ended: Ended) -> str:
        """Leaves the report; the answer. A report that cannot be written changes nothing else."""
        run = self._run(agent, ended)
        level = logging.INFO if run.status is Status.COMPLETED else logging.ERROR
        _log.log(level, "the run ended", extra={"run": run.id, "status": run.status, "reason": run.error})
        if self.report_file:
            self._report(run, agent)
        return run.result

    def _report(self, run: Run, agent: ReferenceAgent) -> None:
        from libs.contract.report import Report  # costly

        manifest = agent.manifest()
        report = Report.of(
            run, agent=manifest.placement.agent, mode=manifest.mode, ended_at=datetime.now(UTC)
        )
        assert self.report_file is not None
        try:
            report.write(self.report_file)
        except OSError as error:
            _log.error("cannot write the report", extra={"reason": str(error)})

    def _run(self, agent: ReferenceAgent, ended: Ended) -> Run:
        """The run as it ended; one that did not come to begin, as far as there was one."""
        try:
            return agent.run(self.run_id)
        except NotFoundError:
            uptime = agent.uptime
            run = Run(self.run_id, self.trigger, state_of(ended.status), ended.status, ended.error)
            return replace(run, age=uptime, took=uptime)


def _written(file: int, data: bytes) -> Future[None]:
    """Done when all of it is; OSError. In a thread of its own, that a process can end without."""

    def write() -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    done: Future[None] = Future()
    done.set_running_or_notify_cancel()  # from here on nobody cancels it
    Thread(target=write, daemon=True).start()
    return done
