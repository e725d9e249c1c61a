"""Agents as processes: what their work comes to when they are killed, drained, misconfigured or cut off."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from agentctl.agent.v1 import agent_service_pb2 as agent_pb
from agentctl.agent.v1 import agent_service_pb2_grpc as agent_grpc
from agentctl.agent.v1.run_pb2 import RUN_STATE_COMPLETED, RUN_STATE_PAUSED
from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs import mesh
from libs.identity import Principal
from libs.rpc.client import dial
from libs.work.item import duration

from .fleet import DOMAIN, QUEUE, Fleet, fleet, free_port, until

FOLDER = Path(__file__).parents[1] / "examples" / "documents"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def documents(count: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*.txt"))[:count]}


async def test_documents_become_summaries_of_themselves(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider()
        agents = [await it.agent(name, provider) for name in ("a", "b")]
        texts = documents(40)
        results = await it.results(await it.submit(texts))
        counted = [await agent.metric('agent_runs_total{status="completed"}') for agent in agents]
    assert results.keys() == texts.keys()
    for name, item in results.items():
        assert item.state == work_pb2.WORK_STATE_SUCCEEDED
        assert item.result_content_type == "text/plain; charset=utf-8"
        first_words = " ".join(item.result.decode().split()[:5])
        assert first_words in " ".join(texts[name].decode().split())
        assert item.attempt == 1
    assert sum(counted) == 40


async def test_a_killed_agents_work_is_finished_by_another(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider(PROVIDER_LATENCY="300ms")
        doomed = await it.agent("doomed", provider, AGENT_LEASE="1s")
        ids = await it.submit(documents(12))
        await doomed.reports("agent_claims_granted_total", 4)
        doomed.signal(signal.SIGKILL)
        assert await doomed.exit_code() == -signal.SIGKILL
        killed = time.monotonic()
        await it.agent("other", provider, AGENT_LEASE="1s")
        results = await it.results(ids)
        took = time.monotonic() - killed
    assert {item.state for item in results.values()} == {work_pb2.WORK_STATE_SUCCEEDED}
    attempts = Counter(item.attempt for item in results.values())
    assert 1 <= attempts[2] <= 4
    assert attempts[1] + attempts[2] == 12
    assert took < 12
    for item in results.values():
        if item.attempt == 2:
            assert item.holder.endswith("/pod/other/uid-other")


async def test_sigterm_finishes_what_is_begun_and_leaves_the_rest(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider(PROVIDER_LATENCY="500ms")
        agent = await it.agent("a", provider)
        ids = await it.submit(documents(10))
        await agent.reports("agent_claims_granted_total", 4)
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == 0
        queue = await it.queue()
        assert queue.leased_count == 0
        assert queue.dead_count == 0
        assert 4 <= queue.settled_total <= 8
        assert queue.ready_count == 10 - queue.settled_total
        await it.agent("b", provider)
        results = await it.results(ids)
    assert {item.attempt for item in results.values()} == {1}


async def test_a_drain_that_takes_too_long_gives_items_back_uncounted(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        slow, fast = await it.provider(PROVIDER_LATENCY="1m"), await it.provider()
        agent = await it.agent("a", slow, AGENT_DRAIN_TIMEOUT="200ms")
        ids = await it.submit(documents(4))
        await agent.reports("agent_claims_granted_total", 4)
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code(within=5) == 0
        assert (await it.queue()).ready_count == 4
        await it.agent("b", fast)
        results = await it.results(ids)
    assert {item.attempt for item in results.values()} == {1}


async def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        agent = await it.agent("a", await it.provider(PROVIDER_LATENCY="1m"))
        await it.submit(documents(4))
        await agent.reports("agent_claims_granted_total", 4)
        agent.signal(signal.SIGTERM)
        await agent.answers("/readyz", 503)
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code(within=5) == 0
        assert (await it.queue()).ready_count == 4


async def test_an_idle_agent_drains_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        agent = await it.agent("a", await it.provider())
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code(within=5) == 0


async def test_a_model_that_fails_now_and_then_delays_work_and_loses_none(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        backoff = work_pb2.Backoff(initial=duration(timedelta(milliseconds=50)))
        policy = work_pb2.QueuePolicy(backoff=backoff, max_attempts=20)
        await it.client.stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=QUEUE, policy=policy))
        provider = await it.provider(PROVIDER_FAIL_EVERY="3", PROVIDER_FAIL_STATUS="500")
        agent = await it.agent("a", provider)
        results = await it.results(await it.submit(documents(15)))
        failed = await agent.metric('agent_intel_errors_total{reason="5xx"}')
    assert {item.state for item in results.values()} == {work_pb2.WORK_STATE_SUCCEEDED}
    assert sum(item.attempt - 1 for item in results.values()) == failed > 0
    errors = {failure.error for item in results.values() for failure in item.failures}
    assert errors == {"model: HTTP 500: failure by PROVIDER_FAIL_EVERY"}


async def test_items_that_no_retry_can_help_are_dead_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        await it.agent("a", await it.provider())
        payloads = {"binary": b"\xff\xfe", "empty": b"", "too long": b"words " * 100_000}
        results = await it.results(await it.submit(payloads))
    assert {item.state for item in results.values()} == {work_pb2.WORK_STATE_DEAD}
    assert {item.attempt for item in results.values()} == {1}
    assert "not UTF-8" in results["binary"].failures[0].error
    assert "maximum context" in results["too long"].failures[0].error


async def test_a_model_that_refuses_the_agent_costs_no_item_an_attempt(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider(PROVIDER_FAIL_EVERY="1", PROVIDER_FAIL_STATUS="403")
        agent = await it.agent("a", provider)
        ids = await it.submit(documents(4))
        assert await agent.exit_code() == 4
        assert (await it.queue()).ready_count == 4
        await it.agent("b", await it.provider())
        results = await it.results(ids)
    assert {item.attempt for item in results.values()} == {1}


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"AGENT_QUEUE": "docs"}, 2, "AGENT_QUEUE"),
        ({"AGENT_SLOT": "4"}, 2, "AGENT_SLOT is not a setting; is it AGENT_SLOTS?"),
        ({"AGENT_INSTRUCTION": ""}, 2, "AGENT_INSTRUCTION"),
        ({"AGENTCTL_TLS_DIR": "/nowhere"}, 2, "/nowhere"),
        ({"OPENAI_BASE_URL": "http://192.0.2.1/v1"}, 2, "OPENAI_BASE_URL"),
        ({"AGENT_QUEUE": "other/docs"}, 2, "may not claim"),
        ({"OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1"}, 4, "model is away"),
        ({"OPENAI_API_KEY": "wrong"}, 4, "HTTP 401"),
        ({"AGENTCTL_COORDINATION_ADDRESS": f"127.0.0.1:{free_port()}"}, 6, "coordination is away"),
    ],
)
async def test_an_agent_that_cannot_work_says_why_and_which_way(
    tmp_path: Path, settings: dict[str, str], code: int, words: str
) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider(PROVIDER_API_KEY="right")
        agent = await it.agent("a", provider, ready=False, **{"OPENAI_API_KEY": "right", **settings})
        assert await agent.exit_code() == code
        assert words in agent.log.read_text()
        assert "Traceback" not in agent.log.read_text()


@asynccontextmanager
async def steering(it: Fleet, port: str) -> AsyncIterator[agent_grpc.AgentServiceAsyncStub]:
    """The agent `a` of this port, as the API server calls it."""
    identity = it.authority.issue(f"spiffe://{DOMAIN}/cp/apiserver", it.folder / "apiserver")
    server = Principal.parse(f"spiffe://{DOMAIN}/ns/demo/agent/docs/pod/a/uid-a")
    async with dial(mesh.AGENT, f"127.0.0.1:{port}", identity, server=server) as channel:
        yield agent_grpc.AgentServiceStub(channel)


async def test_a_paused_agent_claims_nothing_and_a_resumed_one_loses_nothing(tmp_path: Path) -> None:
    port = str(free_port())
    async with fleet(tmp_path) as it:
        agent = await it.agent("a", await it.provider(PROVIDER_LATENCY="300ms"), AGENT_PORT=port)
        ids = await it.submit(documents(12))
        await agent.reports("agent_claims_granted_total", 4)
        async with steering(it, port) as stub:
            runs = (await stub.Pause(agent_pb.PauseRequest())).runs
            assert {run.state for run in runs} <= {RUN_STATE_COMPLETED, RUN_STATE_PAUSED}
            await agent.answers("/readyz", 503)

            async def is_at_rest() -> bool:
                queue = await it.queue()
                return queue.leased_count == sum(run.state == RUN_STATE_PAUSED for run in runs)

            await until(is_at_rest)
            before = await it.queue()
            assert before.ready_count > 0
            await asyncio.sleep(1)  # in which a working agent takes all that is left
            assert (await it.queue()).ready_count == before.ready_count
            await stub.Resume(agent_pb.ResumeRequest())
            await agent.answers("/readyz")
        results = await it.results(ids)
    assert {item.state for item in results.values()} == {work_pb2.WORK_STATE_SUCCEEDED}
    assert {item.attempt for item in results.values()} == {1}


async def test_cancelled_items_are_dead_with_the_reason_and_the_next_are_claimed(tmp_path: Path) -> None:
    port = str(free_port())
    async with fleet(tmp_path) as it:
        agent = await it.agent("a", await it.provider(PROVIDER_LATENCY="1m"), AGENT_PORT=port)
        ids = await it.submit(documents(6))
        await agent.reports("agent_claims_granted_total", 4)
        async with steering(it, port) as stub:
            canceled = (await stub.Cancel(agent_pb.CancelRequest(reason="wrong documents"))).runs
            assert len(canceled) == 4
            await agent.reports("agent_claims_granted_total", 6)
        results = await it.results(
            {name: id for name, id in ids.items() if id in {run.id for run in canceled}}
        )
    assert {item.state for item in results.values()} == {work_pb2.WORK_STATE_DEAD}
    assert {item.attempt for item in results.values()} == {1}
    assert {failure.error for item in results.values() for failure in item.failures} == {"wrong documents"}


async def test_an_agent_outlives_an_outage_of_coordination(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        provider = await it.provider()
        agent = await it.agent("a", provider)
        it.coordination.signal(signal.SIGSTOP)
        await agent.answers("/readyz", 503)
        await agent.answers("/livez")
        it.coordination.signal(signal.SIGCONT)
        await agent.answers("/readyz")
        results = await it.results(await it.submit(documents(5)))
    assert len(results) == 5
