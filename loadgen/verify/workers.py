"""The worker processes: each place is taken by one, and by another as soon as that is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from libs.identity import Identity

from . import watcher, worker
from .board import Board, Cell
from .calls import Seat
from .plan import Plan

_JOIN_SECONDS = 45.0  # longer than the patience of a call


class WorkerError(Exception):
    """A process of ours ended by itself; its own traceback says why."""


class Workers:
    """Workers and the watcher of a run."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        board: Board,
        addresses: Sequence[str],
        identities: Sequence[Identity],
    ) -> None:
        """`identities`: the watcher's and one a worker."""
        self._plan, self._folder, self._board, self._addresses = plan, folder, board, addresses
        self._watching, *self._identities = identities
        self._context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self._turns = [0] * plan.workers
        self._processes: list[BaseProcess] = []
        self._watcher: BaseProcess | None = None
        self._dying: BaseProcess | None = None  # by our hand
        self._frozen: dict[BaseProcess, asyncio.TimerHandle] = {}

    def start(self) -> None:
        watching = (self._plan, self._folder, self._addresses, self._watching)
        self._watcher = self._context.Process(target=watcher.main, args=watching, daemon=True)
        self._watcher.start()
        self._processes = [self._begin(slot) for slot in range(self._plan.workers)]

    async def replace(self, slot: int) -> None:
        """Kill the worker of this place; another one takes it."""
        process = self._processes[slot]
        self._dying = process
        process.kill()
        await asyncio.to_thread(process.join)
        self._board.set(slot, Cell.DONE, 0)
        self._turns[slot] += 1
        self._processes[slot] = self._begin(slot)

    def freeze(self, slot: int, seconds: float) -> None:
        """Stop the worker of this place for so long, while everything else goes on."""
        process = self._processes[slot]
        if process in self._frozen:
            return
        _signal(process, signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        self._frozen[process] = loop.call_later(seconds, self._thaw, process)

    async def mend(self) -> None:
        """Nobody is frozen any more, and no place empty."""
        if self._dying in self._processes:  # whoever was about to replace it was cancelled
            await self.replace(self._processes.index(self._dying))
        for process, handle in list(self._frozen.items()):
            handle.cancel()
            self._thaw(process)

    def check(self) -> None:
        """Raise WorkerError if one ended by itself."""
        for process in self._everybody():
            if process.exitcode is not None and process is not self._dying:
                raise WorkerError(f"process {process.name} ended with exit code {process.exitcode}")

    async def join(self) -> None:
        """When they were told to stop: returns when they have. WorkerError if one does not."""
        for process in self._everybody():
            await asyncio.to_thread(process.join, _JOIN_SECONDS)
            if process.exitcode != 0:
                raise WorkerError(f"process {process.name} did not stop: {process.exitcode}")

    def kill(self) -> None:
        """All, now."""
        for handle in self._frozen.values():
            handle.cancel()
        for process in self._everybody():
            process.kill()
            process.join()

    def _everybody(self) -> list[BaseProcess]:
        return [*self._processes, *([self._watcher] if self._watcher else [])]

    def _begin(self, slot: int) -> BaseProcess:
        seat = Seat(slot, self._turns[slot], self._folder, self._addresses, self._identities[slot])
        process = self._context.Process(target=worker.main, args=(self._plan, seat), daemon=True)
        process.start()
        return process

    def _thaw(self, process: BaseProcess) -> None:
        self._frozen.pop(process, None)
        _signal(process, signal.SIGCONT)


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.pid is not None and process.exitcode is None:
        os.kill(process.pid, number)
