"""Running cases: group by group, each within its time; whatever goes wrong becomes an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

from grpc.aio import AioRpcError

from libs.errors import MeshError

from .case import BrokenError, Case, Group, Outcome, SkippedError, Trial, Verdict
from .world import World

Tell = Callable[[Outcome], None]

_BROKEN = (BrokenError, MeshError, AioRpcError, OSError)  # TimeoutError is an OSError


def chosen(groups: Iterable[Group], only: Sequence[str]) -> list[tuple[Group, list[Case]]]:
    """The groups with those of their cases whose id begins with one of these; none: all."""
    prefixes = tuple(each.upper() for each in only)
    kept = [
        (group, [case for case in group.cases if not prefixes or case.id.startswith(prefixes)])
        for group in groups
    ]
    return [(group, cases) for group, cases in kept if cases]


async def run(world: World, work: Sequence[tuple[Group, list[Case]]], tell: Tell, *, seconds: float) -> None:
    """Tries every case and tells of each; what there is no time left for fails."""
    until = time.monotonic() + seconds
    for group, cases in work:
        async with AsyncExitStack() as stack:
            started: list[object] = []

            async def start(_: object, group: Group = group, stack: AsyncExitStack = stack) -> None:
                started.append(await stack.enter_async_context(group.start(world)))  # noqa: B023

            verdict, message, _ = await _tried(
                start, None, min(group.start_seconds, until - time.monotonic())
            )
            for case in cases:
                if verdict is not Verdict.PASS:
                    tell(Outcome(case, verdict, message, 0.0))
                    continue
                left = min(case.seconds, until - time.monotonic())
                tell(Outcome(case, *await _tried(case.trial, started[0], left)))


async def _tried(trial: Trial, subject: object, seconds: float) -> tuple[Verdict, str, float]:
    began = time.monotonic()
    verdict, message = Verdict.PASS, ""
    try:
        if seconds <= 0:
            raise BrokenError("no time was left for it (see --timeout)")
        async with asyncio.timeout(seconds):
            await trial(subject)
    except SkippedError as error:
        verdict, message = Verdict.SKIP, str(error)
    except TimeoutError as error:
        verdict, message = Verdict.FAIL, str(error) or f"not done within {seconds:.0f}s"
    except MeshError as error:
        called = getattr(error, "__notes__", ["a call"])[0]
        verdict, message = Verdict.FAIL, f"{called} ended with {error.code.name}: {error}"
    except _BROKEN as error:
        verdict, message = Verdict.FAIL, str(error) or type(error).__name__
    return verdict, message, time.monotonic() - began
