"""Turns the workloads of the local home into child processes: pods with probes, volumes, tokens and logs.

Controllers (`deployments`, `stateful_sets`, `jobs`, `cron_jobs`) make and delete Pod objects, and know no
process. `pods` runs each Pod object that it sees: one `container` is one process. They meet only in the
store, as in Kubernetes, whose semantics hold where they are described at all. There is no image, no isolation
(children are the plane's user and see its files) and no DNS: a pod has an address of 127.64.0.0/10, and real
folders for its volumes.
"""

from __future__ import annotations

from .host import Limits
from .runner import Runner

__all__ = ["Limits", "Runner"]
