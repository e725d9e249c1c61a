"""agentctl-agent: works until it is done or told to stop; its exit code says how it ended (`libs.exits`).

Configured by its environment alone. --help says how, --capabilities prints the manifest that would be served.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import uvloop

from libs import pki, telemetry
from libs.contract.events import Ring
from libs.contract.run import Trigger
from libs.contract.serving import agent_serving, show
from libs.contract.statuses import Status
from libs.contract.text import clean
from libs.enrol import RefusedError, enrolled
from libs.exits import Exit, intent
from libs.identity import Identity, Principal
from libs.settings import SettingsError, describe, load

from . import model, tools
from .desk import Desk
from .engine import Engine
from .inputs import Inputs, read
from .life import Life, Result
from .manifest import manifest_of
from .settings import Settings
from .starting import Needs
from .steering import ReferenceAgent


async def run(settings: Settings, inputs: Inputs) -> Exit:
    """The agent, from its first connection to its exit code."""
    telemetry.start("agent", settings.log_level)
    async with AsyncExitStack() as stack:
        try:
            identity = await stack.enter_async_context(enrolled(settings))
        except RefusedError as error:
            return _refuse(error, Exit.USAGE)
        desk = Desk(Ring(), settings.slots)
        toolbox = await stack.enter_async_context(
            tools.connect(
                settings.servers, desk.events.tell, ca_file=settings.model_ca_file, identity=identity
            )
        )
        endpoint = engine = None
        if settings.model:
            endpoint = await stack.enter_async_context(
                model.connect(
                    settings.base_url,
                    settings.key,
                    settings.model_timeout,
                    telemetry.tracer(),
                    ca_file=settings.model_ca_file,
                    identity=identity if settings.model_identity else None,
                )
            )
            engine = Engine(endpoint, toolbox, settings.bounds, settings.model)
        agent = ReferenceAgent(
            desk,
            manifest_of(settings, pki.own(identity)),
            drain_timeout=settings.drain_timeout,
            engine=engine,
            instruction=inputs.instruction,
        )
        with _stopped_by_signals(agent):
            try:
                await _serve(agent, settings, identity, stack)
            except OSError as error:  # a port is taken
                return _refuse(f"cannot listen: {error}", Exit.FAILURE)
            needs = Needs(settings.start_timeout, endpoint, toolbox)
            return await _live(settings, inputs, agent, needs, engine, identity, stack)


@contextmanager
def _stopped_by_signals(agent: ReferenceAgent) -> Iterator[None]:
    """Afterwards they are ignored: how the process ends is decided, and no signal is to change that. Not the
    loop's handlers, in whose place uvloop puts the kernel's when it ends."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(agent.stop))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


async def _serve(
    agent: ReferenceAgent, settings: Settings, identity: Identity, stack: AsyncExitStack
) -> None:
    async def refresh() -> None:
        show(agent.manifest(), await agent.condition())

    await stack.enter_async_context(
        telemetry.plain_port(settings.metrics_port, agent.ready, settings.host, refresh)
    )
    await stack.enter_async_context(agent_serving(agent, identity, host=settings.host, port=settings.port))


async def _live(
    settings: Settings,
    inputs: Inputs,
    agent: ReferenceAgent,
    needs: Needs,
    engine: Engine | None,
    identity: Identity,
    stack: AsyncExitStack,
) -> Exit:
    """The life of the mode; each imports what only it needs."""
    desk, life = agent.desk, Life(agent, needs)
    if settings.when == "workflow":
        from .calls import Calls
        from .modes.calling import Caller
        from .modes.workflow import Workflow

        assert inputs.plan is not None
        assert needs.toolbox is not None
        flow = Workflow(
            desk,
            inputs.plan,
            inputs.run_id,
            engine,
            Caller(Calls(needs.toolbox, settings.bounds)),
            inputs.instruction,
            settings.deadline,
            inputs.kept,
        )
        return await life.end(flow.run, Result(inputs.run_id, Trigger.WORKFLOW, settings.report_file))
    assert engine is not None
    if settings.when == "once":
        from .modes.once import Once

        once = Once(desk, engine, inputs.instruction, inputs.run_id)
        return await life.end(once.run, Result(inputs.run_id, Trigger.ONCE, settings.report_file))
    if settings.when == "loop":
        from .modes.loop import Loop

        assert settings.loop_interval is not None
        return await life.serve(Loop(desk, engine, inputs.instruction, settings.loop_interval).run)
    if settings.when == "reactive":
        from .modes.reactive import Reactive

        assert needs.toolbox is not None
        reactive = Reactive(desk, engine, inputs.instruction, needs.toolbox, settings.uris)
        agent.waiting = reactive.waiting
        return await life.serve(reactive.run)
    from libs import work

    from .modes.claim import Claim

    client = await stack.enter_async_context(work.connect(settings.coordination, identity))
    claim = Claim(
        desk,
        engine,
        inputs.instruction,
        client,
        pki.own(identity),
        settings.queue,
        settings.lease,
        work.Shard(*settings.shard) if settings.shard else None,
    )
    agent.check = claim.check
    agent.on_drain.append(claim.drain)
    return await Life(agent, replace(needs, coordination=claim.check)).serve(claim.run)


def main() -> None:
    """The command."""
    asked = sys.argv[1:]
    if asked not in ([], ["--capabilities"]):
        sys.stderr.write(f"agent: configured by the environment only\n\n{describe(Settings, 'AGENT_')}\n")
        sys.exit(Exit.OK if asked == ["--help"] else Exit.USAGE)
    try:
        settings = load(Settings, "AGENT_")
        inputs = read(settings)
        if asked:
            _print_capabilities(settings)
            sys.exit(Exit.OK)
        if not settings.identity_address:
            pki.own(Identity(settings.tls_dir))
    except (SettingsError, ValueError, OSError) as error:
        sys.exit(_refuse(error, Exit.USAGE, reports=not asked))
    signal.signal(signal.SIGTERM, _end)
    sys.exit(uvloop.run(run(settings, inputs)))


def _refuse(reason: object, code: Exit, *, reports: bool = True) -> Exit:
    """Tells why nothing was begun. Of a process for one run, also in its report."""
    sys.stderr.write(f"agent: {reason}\n")
    file, mode = os.environ.get("AGENT_REPORT_FILE"), os.environ.get("AGENT_MODE", "")
    if file and mode in ("once", "workflow") and reports:
        from libs.contract.report import Report  # costly

        now = datetime.now(UTC)
        report = Report(
            run_id=clean(os.environ.get("AGENT_RUN_ID", ""))[:128],
            status=Status.FAILED,
            exit_code=code,
            intent=intent(code),
            mode=mode,
            error=str(reason),
            started_at=now,
            ended_at=now,
        )
        try:
            report.write(Path(file))
        except OSError as error:
            sys.stderr.write(f"agent: cannot write the report: {error}\n")
    return code


def _end(number: int, frame: FrameType | None) -> None:
    """Before there is an agent that could drain. The first process of a container gets no signal that it has
    no handler for. At once, since an exception from here may hit gRPC in the middle of something."""
    os._exit(Exit.TERMINATED)


def _print_capabilities(settings: Settings) -> None:
    from google.protobuf.json_format import MessageToJson

    from libs.contract.wire import manifest_to_pb

    me: Principal | None
    try:
        me = pki.own(Identity(settings.tls_dir))
    except (ValueError, OSError):  # no certificate yet
        me = None
    sys.stdout.write(MessageToJson(manifest_to_pb(manifest_of(settings, me))) + "\n")


if __name__ == "__main__":
    main()
