"""What was so at every moment while a test did something: heard by watches, so nothing is missed."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .kubectl import Kubectl

_POD = (
    "{.metadata.name}|{.metadata.deletionTimestamp}|{.status.phase}|"
    '{.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
)


@dataclass
class Trace:
    """Of a fleet's workload, from the beginning of the block on."""

    replicas: list[int] = field(default_factory=list)
    """Each number that was asked for, in order."""
    ready: list[int] = field(default_factory=lambda: [0])
    """How many pods were ready and to stay, after each change."""

    def forget(self) -> None:
        """All but what is so now."""
        del self.replicas[:-1], self.ready[:-1]

    def is_at(self, replicas: int) -> bool:
        """Whether so many are asked for, and are there."""
        return self.replicas[-1:] == [replicas] and self.ready[-1:] == [replicas]


@contextmanager
def traced(kubectl: Kubectl, namespace: str, workload: str, selector: str) -> Iterator[Trace]:
    """`workload` is like deployment/docs; it may be made again."""
    trace, pods = Trace(), dict[str, bool]()

    def asked(line: str) -> None:
        if line.isdigit() and [int(line)] != trace.replicas[-1:]:
            trace.replicas.append(int(line))

    def seen(line: str) -> None:
        name, deleted, phase, ready = line.split("|")
        pods[name] = not deleted and phase == "Running" and ready == "True"
        if [sum(pods.values())] != trace.ready[-1:]:
            trace.ready.append(sum(pods.values()))

    kind, _, name = workload.partition("/")
    of_workload = (
        kind,
        "--field-selector",
        f"metadata.name={name}",
        "-o",
        'jsonpath={.spec.replicas}{"\\n"}',
    )
    with (
        _watched(kubectl, namespace, of_workload, asked),
        _watched(kubectl, namespace, ("pods", "-l", selector, "-o", f"jsonpath={_POD}"), seen),
    ):
        yield trace


@contextmanager
def _watched(
    kubectl: Kubectl, namespace: str, words: Sequence[str], heard: Callable[[str], None]
) -> Iterator[None]:
    """Each line of `kubectl get --watch` while the block runs."""
    command = ("kubectl", "--kubeconfig", str(kubectl.kubeconfig), "get", "-n", namespace, "--watch", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout

        def listen() -> None:
            for line in lines:
                heard(line.rstrip("\n"))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            process.kill()
            thread.join()
