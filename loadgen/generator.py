"""The generator processes: one event loop each, told what to do over a pipe, on one clock."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

import uvloop

from .channel import Target
from .ledger import Ledger
from .load import prepared
from .loops import Window
from .tally import Step, Tally

_PROGRESS = 0.25  # seconds
_LEAD = 0.2  # seconds from "go" to the common start
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_CHEAPER = "-event_engine_client"  # gRPC's other way to do I/O wakes its threads up a third more often


@dataclass(frozen=True)
class Ready:
    """Connections are open; waiting for the start."""


@dataclass(frozen=True)
class Progress:
    """How far one process is."""

    cycles: int
    errors: int


class GeneratorError(Exception):
    """A generator process ended before its time; its own traceback says why."""


class Generators:
    """A set of processes that runs steps. Leaving the block ends them."""

    def __init__(self, target: Target, processes: int) -> None:
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self._pipes: list[Connection] = []
        self._processes = []
        for index in range(processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=_main, args=(index, target, theirs), daemon=True)
            with _cheaper_grpc():
                process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # ends the process, if it is idle
        for process in self._processes:
            process.join(timeout=0 if error else 5)
            if process.is_alive():
                process.kill()
                process.join()

    def run(
        self,
        step: Step,
        *,
        mark: Callable[[], None],
        progress: Callable[[int, int, float], None],
    ) -> list[Tally]:
        """Runs one step. Calls `mark` when the measured window begins and when it ends, `progress` with
        cycles, errors and the share of the time that passed, about four times a second.
        """
        pipes = self._pipes[: step.processes]
        for pipe in pipes:
            pipe.send(step)
        for pipe in pipes:
            _receive(pipe)
        window = Window.of(step, time.monotonic() + _LEAD)
        for pipe in pipes:
            pipe.send(window)
        marks = [window.measure, window.end]
        states = {pipe: Progress(0, 0) for pipe in pipes}
        tallies: dict[Connection, Tally] = {}
        while len(tallies) < len(pipes):
            until = min([*marks, time.monotonic() + _PROGRESS])
            waiting = [pipe for pipe in pipes if pipe not in tallies]
            for ready in wait(waiting, max(until - time.monotonic(), 0)):
                pipe = next(each for each in waiting if each is ready)
                message = _receive(pipe)
                if isinstance(message, Tally):
                    tallies[pipe] = message
                elif isinstance(message, Progress):
                    states[pipe] = message
            now = time.monotonic()
            while marks and now >= marks[0]:
                marks.pop(0)
                mark()
            passed = min(max((now - window.start) / (window.end - window.start), 0), 1)
            cycles = sum(state.cycles for state in states.values())
            progress(cycles, sum(state.errors for state in states.values()), passed)
        for _ in marks:  # cut short before the window ended
            mark()
        return [tallies[pipe] for pipe in pipes]


def _receive(pipe: Connection) -> object:
    try:
        message: object = pipe.recv()
    except EOFError as error:
        raise GeneratorError("a generator process ended before its time") from error
    return message


@contextmanager
def _cheaper_grpc() -> Iterator[None]:
    """For processes that are started in the block; gRPC looks at this when it is imported, once."""
    said = os.environ.get(_EXPERIMENTS)
    if said is None:
        os.environ[_EXPERIMENTS] = _CHEAPER
    try:
        yield
    finally:
        if said is None:
            del os.environ[_EXPERIMENTS]


def _main(index: int, target: Target, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, which ends us
    gc.freeze()
    gc.set_threshold(10_000, 1_000_000, 1_000)  # as the server does: calls make no cycles
    while True:
        try:
            step = pipe.recv()
        except EOFError:
            return
        uvloop.run(_run(index, target, step, pipe))


async def _run(index: int, target: Target, step: Step, pipe: Connection) -> None:
    tally = Tally(Ledger(step.tag, index, step.payload))
    async with AsyncExitStack() as stack:
        generate = await prepared(step, index, target, tally, stack)
        pipe.send(Ready())
        window: Window = await asyncio.to_thread(pipe.recv)
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(_report(pipe, tally)), group.create_task(_count_cpu(tally, window))]
            await generate(window)
            for helper in helpers:
                helper.cancel()
    pipe.send(tally)


async def _report(pipe: Connection, tally: Tally) -> None:
    while True:
        await asyncio.sleep(_PROGRESS)
        pipe.send(Progress(tally.cycles, tally.errors.total()))


async def _count_cpu(tally: Tally, window: Window) -> None:
    await asyncio.sleep(max(window.measure - time.monotonic(), 0))
    began = time.process_time()
    await asyncio.sleep(max(window.end - time.monotonic(), 0))
    tally.cpu_seconds = time.process_time() - began
