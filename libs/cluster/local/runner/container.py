"""One container of a pod: a process, started again as the pod's restart policy says.

What https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ says of containers holds, with a
shorter backoff: 0.5 s to 5 minutes, the shortest again after a container that ran for 30 s.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal

import anyio

from libs.cluster import Object
from libs.errors import InvalidError

from . import last_words
from .environment import variables_of
from .host import Host
from .inputs import MissingError
from .launching import Within, launch_of, message_of, program_of
from .probes import Probe, ask, probe_of
from .process import Child, Launch

_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY_SECONDS = 0.5, 300.0, 30.0
_LEAST_GRACE = 2.0  # of a process whose preStop hook took all the time
_CANNOT_START = 128

Policy = Literal["Always", "OnFailure", "Never"]


class Backoff:
    """How long to wait before a container starts again."""

    def __init__(self) -> None:
        self._next = _FIRST_PAUSE

    def after(self, ran: float) -> float:
        """Seconds to wait after it ran for so long: twice as many as before, unless that was long enough."""
        pause = _FIRST_PAUSE if ran >= _STEADY_SECONDS else self._next
        self._next = min(pause * 2, _LONGEST_PAUSE)
        return pause


class Container:
    """A container as declared. Its process runs at most once at a time, and never after `ended`."""

    def __init__(self, declared: Object, pod: Within, host: Host, policy: Policy) -> None:
        self.name: str = declared["name"]
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()  # its startup probe has answered, once
        self.ready = False
        self.exit_code: int | None = None
        self.waiting = {"reason": "ContainerCreating"}
        self._declared = declared
        self._pod = pod
        self._host = host
        self._policy = policy
        self._scope = anyio.CancelScope()
        self._child: Child | None = None
        self._state: Object = {}
        self._last: Object = {}
        self._restarts = 0
        self._in_run = False
        self._is_started = False
        self._wrong = ""  # why we ended it, if we did

    async def run(self) -> None:
        """Starts it, and again; returns when it has ended for good, or is stopped and gone."""
        self._in_run = True
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        try:
            with self._scope:
                while True:
                    begin = clock()
                    await self._once()
                    if self._policy == "Never" or (self._policy == "OnFailure" and self.exit_code == 0):
                        return
                    pause = backoff.after(clock() - begin)
                    self._wait("CrashLoopBackOff", f"it starts again {pause:g} s after its end")
                    await asyncio.sleep(pause)
                    self._restarts += 1
        finally:
            self.ended.set()
            self._pod.changed()

    async def stop(self) -> None:
        """Stops it within the pod's grace; returns when it is gone."""
        if self._in_run:
            self._scope.cancel()
            await self.ended.wait()

    def kill(self) -> None:
        """SIGKILL at once."""
        if self._child:
            self._child.kill()

    async def bound_log(self) -> None:
        """Keeps its log from growing without end. OSError."""
        if self._child:
            await self._child.bound_log(self._host.limits.log_bytes)

    def check(self) -> None:
        """InvalidError if it wants what there is not here."""
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe_of(self._declared, probe, "")

    def status(self) -> Object:
        """Its entry in status.containerStatuses."""
        return {
            "name": self.name,
            "image": self._declared.get("image", ""),
            "imageID": "",
            "ready": self.ready,
            "started": self._is_started,
            "restartCount": self._restarts,
            **({"containerID": f"process://{self._child.pid}"} if self._child else {}),
            "state": self._state or {"waiting": self.waiting},
            "lastState": self._last,
        }

    async def _once(self) -> None:
        launch = await self._launch()
        if launch is None:
            return
        message = message_of(self._declared, self._pod)
        try:
            last_words.begin(message)
            with anyio.CancelScope(shield=True):  # else a process might be started that nobody knows
                child = self._child = await Child.start(launch, self._host.prefix)
        except (OSError, ValueError) as error:
            return self._terminated(_CANNOT_START, self._host.now(), str(error))
        self.exit_code, self._wrong = None, ""
        self._be({"running": {"startedAt": self._host.now()}})
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._probe, group.cancel_scope)
                await child.wait()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                code = await self._stop(child, launch)
            said = last_words.read(message)
            self._terminated(code, self._state["running"]["startedAt"], said=said)

    async def _launch(self) -> Launch | None:
        """Once all that it names is there; None, and its state terminated, if it cannot be started."""
        declared = self._declared
        if not declared.get("command"):
            self._wait("ImageEntrypointUnknown", "there are no images here: say its command")
            await anyio.sleep_forever()
        while True:
            news = self._pod.news()
            try:
                variables = await variables_of(declared, self._pod.view(), self._host.inputs)
                launch = launch_of(declared, self._pod, variables, self._host)
                break
            except (MissingError, InvalidError) as error:
                self._wait("CreateContainerConfigError", str(error))
                await news.wait()
        program = program_of(launch)
        if program is None:
            why = f"there is no {launch.words[0]} to run in {launch.directory}"
            self._terminated(_CANNOT_START, self._host.now(), why)
            return None
        return replace(launch, words=(program, *launch.words[1:]))

    async def _probe(self, all_of_it: anyio.CancelScope) -> None:
        address = self._pod.view()["status"]["podIP"]
        startup, readiness, liveness = (
            probe_of(self._declared, f"{name}Probe", address) for name in ("startup", "readiness", "liveness")
        )
        begin = asyncio.get_running_loop().time()
        if startup and not await self._starts(startup, begin):
            self._wrong = "its startup probe failed"
            all_of_it.cancel()
            return
        self._is_started = True
        self.begun.set()
        self._pod.changed()
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_asking, readiness, begin)
            if liveness and not await self._lives(liveness):
                self._wrong = "its liveness probe failed"
                all_of_it.cancel()

    async def _starts(self, probe: Probe, begin: float) -> bool:
        clock = asyncio.get_running_loop().time
        while not await ask(probe):
            age = clock() - begin
            if age > probe.delay + probe.period * probe.failures:
                return False
            await asyncio.sleep(probe.pause(age))
        return True

    async def _keep_asking(self, probe: Probe | None, begin: float) -> None:
        if probe is None:
            self._be_ready(True)
            return
        clock, streak, was_ready = asyncio.get_running_loop().time, 0, False
        while True:
            if await ask(probe) != self.ready:
                streak += 1
                if streak >= (probe.failures if self.ready else probe.successes):
                    self._be_ready(not self.ready)
                    was_ready, streak = True, 0
            else:
                streak = 0
            await asyncio.sleep(probe.period if was_ready else probe.pause(clock() - begin))

    async def _lives(self, probe: Probe) -> bool:
        await asyncio.sleep(max(probe.delay, probe.period))
        streak = 0
        while streak < probe.failures:
            streak = 0 if await ask(probe) else streak + 1
            await asyncio.sleep(probe.period if streak < probe.failures else 0)
        return False

    async def _stop(self, child: Child, launch: Launch) -> int:
        """Its preStop hook, SIGTERM, SIGKILL, all within the pod's grace; at once if it has ended."""
        self._be_ready(False)
        clock = asyncio.get_running_loop().time
        begin = clock()
        hook = self._declared.get("lifecycle", {}).get("preStop")
        if hook and child.exit_code is None:
            async with anyio.create_task_group() as group:
                group.start_soon(self._run_hook, hook, launch, group.cancel_scope)
                with anyio.move_on_after(self._pod.grace):
                    await child.wait()
                group.cancel_scope.cancel()
        left = self._pod.grace - (clock() - begin)
        return await child.stop(max(left, _LEAST_GRACE) if hook else left)

    async def _run_hook(self, hook: dict[str, Any], launch: Launch, over: anyio.CancelScope) -> None:
        if "httpGet" in hook:
            address = self._pod.view()["status"]["podIP"]
            probe = probe_of({**self._declared, "preStop": hook}, "preStop", address)
            if probe:
                await ask(replace(probe, timeout=self._pod.grace))
        elif "exec" in hook:
            beside = f"{self.name}.prestop"
            words = hook["exec"]["command"]
            launch = replace(
                launch,
                words=self._host.words(words),
                log=launch.log.with_name(f"{beside}.log"),
                record=launch.record.with_name(f"{beside}.process"),
            )
            if program_of(launch):
                with anyio.CancelScope(shield=True):
                    child = await Child.start(launch, self._host.prefix)
                try:
                    await child.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        child.kill()
                        await child.wait()
        elif "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        over.cancel()

    def _terminated(self, code: int, started_at: str, error: str = "", said: str = "") -> None:
        signal = -code if code < 0 else 0
        self.exit_code = 128 + signal if signal else code
        reason = "StartError" if error else "Error" if self.exit_code else "Completed"
        message = ": ".join(filter(None, (error or self._wrong, said)))
        self._be(
            {
                "terminated": {
                    "exitCode": self.exit_code,
                    **({"signal": signal} if signal else {}),
                    "reason": reason,
                    **({"message": message} if message else {}),
                    "startedAt": started_at,
                    "finishedAt": self._host.now(),
                }
            }
        )

    def _wait(self, reason: str, message: str) -> None:
        self._be({"waiting": {"reason": reason, "message": message}})

    def _be(self, state: Object) -> None:
        if "terminated" in self._state:
            self._last = self._state
        self._state = state
        if "running" not in state:
            self.ready = self._is_started = False
        self._pod.changed()

    def _be_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._pod.changed()
