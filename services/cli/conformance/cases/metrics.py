"""METRIC: names, labels and types of the registry, with values that are true."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.contract.metrics import OTHER, REGISTRY
from libs.errors import ExhaustedError

from ..case import BrokenError, Group, SkippedError, demand
from ..model import Fail, Say, Use
from ..sending import holding, send
from ..subject import Subject, is_refused
from ..world import World


@asynccontextmanager
async def _start(world: World) -> AsyncIterator[Subject]:
    async with world.standing() as agent:
        if not agent.manifest.surfaces.metrics_version:
            raise SkippedError("not offered: its manifest says that it has no registry of metrics")
        yield agent


GROUP = Group("metrics", _start)


async def _families(agent: Subject) -> dict[str, Metric]:
    status, text = await agent.plain("/metrics")
    demand(status == 200, f"/metrics answers {status}")
    try:
        return {family.name: family for family in text_string_to_metric_families(text)}
    except ValueError as error:
        raise BrokenError(f"/metrics is not in Prometheus' format: {error}") from error


async def _value(agent: Subject, name: str, **labels: str) -> float:
    for family in (await _families(agent)).values():
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return 0.0


@GROUP.case("METRIC-01", "what begins with agent_ is in the registry, its type and labels too")
async def _are_registered(agent: Subject) -> None:
    if agent.model is not None and agent.manifest.surfaces.messages and agent.may_change:
        await send(agent, agent.model.script(Use(), Say()))
    families = await _families(agent)
    demand("agent_up" in families, "agent_up is not there")
    for family in families.values():
        if not family.name.startswith("agent_"):
            continue
        row = REGISTRY.get(family.name) or REGISTRY.get(f"{family.name}_total")
        if row is None and agent.is_newer(agent.manifest.surfaces.metrics_version):
            continue
        if row is None:
            raise BrokenError(f"{family.name} is not in the registry")
        demand(family.type == row.type, f"{row.name} is a {family.type}, in the registry a {row.type}")
        allowed = dict(row.labels)
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            found = sorted(sample.labels)
            demand(
                found == sorted(allowed), f"{row.name} has labels {found}, in the registry {sorted(allowed)}"
            )
            for label, value in sample.labels.items():
                words = allowed[label]
                demand(
                    not words or value in (*words, OTHER), f"{row.name}: {label}={value!r} is no word of it"
                )


@GROUP.case("METRIC-02", "agent_tokens_total grows by what the model counted, of failed runs too")
async def _count_tokens(agent: Subject) -> None:
    model = agent.needs_model()
    before = [await _value(agent, "agent_tokens_total", type=each) for each in ("in", "out")]
    await send(
        agent, model.script(Use(input_tokens=211, output_tokens=13), Say(input_tokens=100, output_tokens=4))
    )
    await send(agent, model.script(Say(refusal="no", input_tokens=50, output_tokens=1)))
    after = [await _value(agent, "agent_tokens_total", type=each) for each in ("in", "out")]
    grown = [int(late - early) for early, late in zip(before, after, strict=True)]
    demand(grown == [361, 18], f"it grew by {grown} (in, out), the model counted [361, 18]")


@GROUP.case("METRIC-03", "the totals of runs, steps and calls of the model grow by what was done")
async def _count_runs(agent: Subject) -> None:
    model = agent.needs_model()
    what = {
        "agent_runs_total": {"status": "completed"},
        "agent_loop_steps_total": {},
        "agent_intel_calls_total": {},
    }
    before = {name: await _value(agent, name, **labels) for name, labels in what.items()}
    await send(agent, model.script(Use(), Say()))
    for name, done in (
        ("agent_runs_total", 1),
        ("agent_loop_steps_total", 2),
        ("agent_intel_calls_total", 2),
    ):
        grown = await _value(agent, name, **what[name]) - before[name]
        demand(grown == done, f"{name} grew by {grown:g}, it has to be {done}")


@GROUP.case("METRIC-04", "agent_active_runs and agent_ready tell the moment")
async def _gauge(agent: Subject) -> None:
    idle = await _value(agent, "agent_active_runs")
    async with holding(agent):
        busy = await _value(agent, "agent_active_runs")
    demand(busy == idle + 1, f"agent_active_runs is {busy:g} beside a run, and {idle:g} without")
    demand(await _value(agent, "agent_ready") == 1, "agent_ready is not 1, and the agent is ready")


@GROUP.case("METRIC-05", "a call of the model that fails is counted by its reason")
async def _count_errors(agent: Subject) -> None:
    before = await _errors(agent)
    await send(agent, agent.needs_model().script(Fail(400, "refused by the script")))
    after = await _errors(agent)
    demand(after == before + 1, f"agent_intel_errors_total grew by {after - before:g}, it has to be 1")


@GROUP.case("METRIC-06", "a message that is not taken is counted by its reason")
async def _count_refusals(agent: Subject) -> None:
    stub, most = await agent.steer(), agent.manifest.limits.max_depth
    agent.needs_messages()
    if not most:
        raise SkippedError("not offered: its manifest says no max_depth")
    before = await _value(agent, "agent_refusals_total", reason="depth")
    deep = pb.SendMessageRequest(text="conformance", depth=most + 1)
    await is_refused(stub.SendMessage(deep), ExhaustedError, what=f"a message of depth {most + 1}")
    grown = await _value(agent, "agent_refusals_total", reason="depth") - before
    demand(grown == 1, f"agent_refusals_total{{reason=depth}} grew by {grown:g}, it has to be 1")


async def _errors(agent: Subject) -> float:
    family = (await _families(agent)).get("agent_intel_errors")
    samples = family.samples if family else []
    return float(sum(each.value for each in samples if each.name == "agent_intel_errors_total"))
