"""/metrics of the bridge: what it knows itself, and of agentd's own what only agentd knows, under the names
and labels of the registry. What agentd counts wrongly is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aiohttp import ClientError, ClientSession, ClientTimeout
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from libs.contract import metrics as contract
from libs.contract.agent import Agent
from libs.errors import MeshError

_SECONDS = 1.0
_MAX_BYTES = 1024 * 1024
OURS = frozenset(
    each.name
    for each in (
        contract.UP,
        contract.READY,
        contract.PAUSED,
        contract.ACTIVE_RUNS,
        contract.SATURATION,
        contract.STEPS,  # which agentd counts in another process than the one that tells
        contract.TOKENS,
        contract.MODEL_CALLS,
        contract.MODEL_ERRORS,
        contract.MODEL_UP,
        contract.REFUSALS,
        contract.DRAINS,
        contract.CLAIMS_GRANTED,
        contract.CLAIMS_LOST,
        contract.CLAIMS_RELEASED,
    )
)
_log = logging.getLogger(__name__)


class PassedThrough(Collector):
    """agentd's metrics as of the last `refresh`; none if it has none. `counts_runs`: the bridge tells of
    runs, so agentd need not."""

    def __init__(self, session: ClientSession, url: str, *, counts_runs: bool) -> None:
        self._session = session
        self._url = url
        self._left_out = OURS | ({contract.RUNS.name} if counts_runs else set())
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks at each scrape."""
        return self._families

    async def refresh(self) -> None:
        """Reads them anew."""
        self._families = []
        if not self._url:
            return
        try:
            async with self._session.get(self._url, timeout=ClientTimeout(total=_SECONDS)) as response:
                text = await response.content.read(_MAX_BYTES) if response.status == 200 else b""
            self._families = list(_families(text.decode(), self._left_out))
        except (ClientError, OSError, ValueError) as error:
            _log.debug("the agent tells no metrics: %s", error)

    async def pending(self) -> int:
        """Events that wait for agentd, as it says now."""
        await self.refresh()
        named = (each for each in self._families if each.name == contract.PENDING_EVENTS.name)
        return int(sum(sample.value for family in named for sample in family.samples))


def _families(text: str, left_out: frozenset[str] | set[str]) -> Iterable[Metric]:
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        row = contract.REGISTRY.get(name)
        if row is None or name in left_out or family.type != row.type:
            continue
        sums: dict[tuple[str, ...], float] = {}
        for sample in family.samples:
            if sample.name != name or set(sample.labels) != {label for label, _ in row.labels}:
                continue
            values = tuple(_known(sample.labels[label], domain) for label, domain in row.labels)
            sums[values] = sums.get(values, 0) + sample.value
        made = CounterMetricFamily if row.type is contract.Type.COUNTER else GaugeMetricFamily
        kept = made(family.name, row.help, labels=[label for label, _ in row.labels])
        for labels, value in sums.items():
            kept.add_metric(labels, value)
        if sums:
            yield kept


def _known(value: str, domain: tuple[str, ...]) -> str:
    return value if not domain or value in domain else contract.OTHER


async def show(agent: Agent) -> None:
    """The gauges that the bridge knows of its agent, as they are now."""
    condition = await agent.condition()
    try:
        slots = agent.manifest().limits.slots
    except MeshError:  # it is not there
        slots = 0
    under_way = len(condition.runs)
    contract.UP.set(to=bool(slots))
    contract.READY.set(to=condition.ready)
    contract.PAUSED.set(to=condition.paused)
    contract.ACTIVE_RUNS.set(to=under_way)
    contract.SATURATION.set(to=under_way / max(slots, under_way, 1))
