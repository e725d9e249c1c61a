"""What our pods use, container by container: `python -m integration.cluster.usage [SECONDS]`.

On the cluster of KUBECONFIG, by the kubelets' own figures (`/metrics/resource`): CPU is the mean over the
time, memory the working set at its end.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.console import Console
from rich.table import Table

from .kubectl import Kubectl

_OURS = "app.kubernetes.io/part-of=agentctl"
_CPU, _MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"

Container = tuple[str, str, str]
"""Namespace, pod, name."""


@dataclass(frozen=True)
class Use:
    """CPU seconds used so far, by when (unix seconds, the kubelet's clock), and bytes of memory."""

    cpu: float
    at: float
    memory: float


def uses(kubectl: Kubectl) -> dict[Container, Use]:
    """Of every container of our pods that the kubelets have figures of."""
    pods = {
        (pod["metadata"]["namespace"], pod["metadata"]["name"])
        for pod in kubectl.get("pods", "--all-namespaces", "-l", _OURS)
    }
    samples: dict[str, dict[Container, Sample]] = {_CPU: {}, _MEMORY: {}}
    for node in kubectl.get("nodes"):
        text = kubectl("get", "--raw", f"/api/v1/nodes/{node['metadata']['name']}/proxy/metrics/resource")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in samples:
                    labels = sample.labels
                    samples[sample.name][labels["namespace"], labels["pod"], labels["container"]] = sample
    return {
        where: Use(cpu.value, float(cpu.timestamp or 0), samples[_MEMORY][where].value)
        for where, cpu in samples[_CPU].items()
        if where[:2] in pods and where in samples[_MEMORY]
    }


def main() -> None:
    seconds = float(sys.argv[1]) if sys.argv[1:] else 60.0
    kubectl = Kubectl(Path(os.environ["KUBECONFIG"]))
    before = uses(kubectl)
    time.sleep(seconds)
    after = uses(kubectl)
    table = Table("namespace", "pod", "container", "CPU m", "MiB", title=f"over {seconds:.0f} s")
    cpu_sum = memory_sum = 0.0
    for where in sorted(before.keys() & after.keys()):
        first, last = before[where], after[where]
        cpu = 1000 * (last.cpu - first.cpu) / (last.at - first.at) if last.at > first.at else float("nan")
        memory = last.memory / 2**20
        table.add_row(*where, f"{cpu:.1f}", f"{memory:.0f}")
        cpu_sum, memory_sum = cpu_sum + cpu, memory_sum + memory
    table.add_section()
    table.add_row("all", "", "", f"{cpu_sum:.1f}", f"{memory_sum:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
