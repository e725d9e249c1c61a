"""How commands reach a component or a Kubernetes: connections whose errors are the command's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from libs.state import ADMINISTRATOR

from .output import Exit, FailedError
from .session import Settings, check_certificate, failed

if TYPE_CHECKING:
    from libs.cluster.kubernetes import KubernetesCluster
    from libs.mesh import Component
    from libs.rpc.client import Channel


@contextmanager
def told(where: str) -> Iterator[None]:
    """Errors of the mesh, and of a kubeconfig, are told as the command's."""
    from libs.errors import MeshError
    from libs.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        raise FailedError(f"{where}: {' '.join(str(error).split())}", Exit.UNAVAILABLE) from error
    except MeshError as error:
        raise failed(error, where) from error


@asynccontextmanager
async def component_at(settings: Settings, component: Component, address: str) -> AsyncIterator[Channel]:
    """A component, called with the certificate of the settings."""
    from libs.identity import Identity
    from libs.rpc.client import dial

    tls_dir = settings.tls_dir or settings.state.identity(ADMINISTRATOR)
    check_certificate(tls_dir)
    with told(address):
        async with dial(component, address, Identity(tls_dir)) as channel:
            yield channel


@asynccontextmanager
async def cluster_at(
    kubeconfig: Path | None, context: str = "", *, warned: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """The cluster of a kubeconfig's context, and what to call it. `warned` hears its warnings."""
    from libs.cluster.kubernetes import connect

    where = str(kubeconfig) + (f" ({context})" if context else "")
    _check_file(kubeconfig)
    with told(where):
        async with connect(kubeconfig, context, warned=warned) as cluster:
            yield cluster, where


def default_kubeconfig(settings: Settings) -> Path | None:
    """Where kubectl would look; None if nothing is there."""
    if named := settings.environment.get("KUBECONFIG"):
        return Path(named)
    usual = Path.home() / ".kube" / "config"
    return usual if usual.is_file() else None


def _check_file(kubeconfig: Path | None) -> None:
    if kubeconfig and os.pathsep not in str(kubeconfig) and not kubeconfig.is_file():  # it may name many
        raise FailedError(f"{kubeconfig}: no such file", Exit.UNAVAILABLE)
