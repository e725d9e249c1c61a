"""The local home: objects in one SQLite file, pods as child processes, one trust domain.

`open_local` opens the objects; `runner` runs the pods. It is no emulator of the Kubernetes API: it has the
kinds of `libs.cluster.kinds` and the behaviour that the port promises.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from libs.cluster.kinds import NAMESPACE, SERVICE_ACCOUNT
from libs.errors import ConflictError, PreconditionError

from . import objects
from .access import ADMINISTRATOR, SYSTEM
from .cluster import LocalCluster
from .store import Store
from .tokens import Tokens, signing_key

__all__ = ["ADMINISTRATOR", "SYSTEM", "LocalCluster", "open_local"]


@asynccontextmanager
async def open_local(folder: Path, *, clock: Callable[[], float] = time.time) -> AsyncIterator[LocalCluster]:
    """The home in that folder (made, mode 0700, when there is none), with the namespaces `default` and
    `agentctl-system`. PreconditionError while another process, or another block, has it open."""
    _make(folder)
    with _alone(folder / "lock"):
        key = signing_key(folder / "token.key")
        store = Store(folder / "objects.sqlite")
        try:
            cluster = LocalCluster(store, Tokens(key, store.read, clock), folder, clock)
            for thing in (
                objects.named(NAMESPACE, "default"),
                objects.named(NAMESPACE, SYSTEM),
                objects.named(SERVICE_ACCOUNT, ADMINISTRATOR, SYSTEM),
            ):
                with suppress(ConflictError):  # it is there
                    await cluster.create(thing)
            yield cluster
        finally:
            store.close()


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the lock file; the kernel lets go of it however the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode().strip()
            raise PreconditionError(f"{path.parent} is open in process {holder}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
