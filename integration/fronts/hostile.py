"""A front under attack, with well-behaved callers beside the attacker: what became of all three."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from libs.identity import Identity, TrustClass
from libs.pki import Authority
from libs.rpc.server import FrontName
from libs.testing import ca
from libs.testing.mesh import Mesh, spiffe_path

from .attacks import Attack, Target

_BYSTANDERS = 2
_PATIENCE_SECONDS = 15.0
_PAUSE_SECONDS = 0.01  # of a bystander, between calls
_BEFORE_SECONDS = 0.5
_SETTLE_SECONDS = 15.0
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Damage:
    """What an attack did. Memory is the server's resident set, in MiB; times in milliseconds."""

    attack: str
    front: FrontName
    size: int
    fate: str
    seconds: float
    served: int  # calls of the bystanders while it lasted
    errors: tuple[str, ...]
    p99_before: float
    p99: float
    memory_before: float
    memory_peak: float
    memory_after: float
    descriptors_before: int
    descriptors_after: int
    cpu_seconds: float  # of the server
    alive: bool


class Bystander:
    """A caller that behaves: one call after the other, on a connection of its own."""

    def __init__(self, port: int, user: Identity, name: str) -> None:
        self.errors: list[str] = []
        self.calls: list[tuple[float, float]] = []  # when it ended, how many seconds it took
        self._credentials = grpc.ssl_channel_credentials(
            user.root.read_bytes(), user.key.read_bytes(), user.certificate.read_bytes()
        )
        self._options = (("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1))
        self._address = f"127.0.0.1:{port}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        with grpc.secure_channel(self._address, self._credentials, self._options) as channel:
            say: Any = channel.unary_unary("/test.Probe/Say")
            while not self._over.wait(_PAUSE_SECONDS):
                begun = time.perf_counter()
                try:
                    say(b"", timeout=_PATIENCE_SECONDS)
                except grpc.RpcError as error:
                    self.errors.append(f"{error.code().name}: {error.details()}")
                else:
                    ended = time.perf_counter()
                    self.calls.append((ended, ended - begun))


class Siege:
    """One server for many attacks, one after the other."""

    def __init__(
        self, front: FrontName, target: Target, process: psutil.Process, bystanders: list[Bystander]
    ) -> None:
        self.front = front
        self.target = target
        self._process = process
        self._bystanders = bystanders

    def suffer(self, attack: Attack, size: int, attacker: ProcessPoolExecutor) -> Damage:
        """Lets the attacker do that, and gives the server some time to recover."""
        quiet = time.perf_counter()
        time.sleep(_BEFORE_SECONDS)
        begun = time.perf_counter()
        memory, descriptors, cpu = self._memory(), self._process.num_fds(), self._cpu()
        errors = [len(each.errors) for each in self._bystanders]
        attacking = attacker.submit(attack, self.target, size)
        peak = max(self._memory_until(attacking))
        fate = attacking.result()
        ended = time.perf_counter()
        self._settle(descriptors)
        during = self._took(begun, ended)
        return Damage(
            attack=attack.__name__.replace("_", " "),
            front=self.front,
            size=size,
            fate=fate,
            seconds=ended - begun,
            served=len(during),
            errors=tuple(
                error
                for each, before in zip(self._bystanders, errors, strict=True)
                for error in each.errors[before:]
            ),
            p99_before=_p99(self._took(quiet, begun)),
            p99=_p99(during),
            memory_before=memory,
            memory_peak=max(memory, peak),
            memory_after=self._memory(),
            descriptors_before=descriptors,
            descriptors_after=self._process.num_fds(),
            cpu_seconds=self._cpu() - cpu,
            alive=self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE,
        )

    def _memory_until(self, attacking: Future[str]) -> Iterator[float]:
        while True:
            yield self._memory()
            if attacking.done():
                return
            time.sleep(0.02)

    def _settle(self, descriptors: int) -> None:
        """Returns once what was opened is closed again; connections that linger show in the figures."""
        end = time.perf_counter() + _SETTLE_SECONDS
        while self._process.num_fds() > descriptors and time.perf_counter() < end:
            time.sleep(0.05)

    def _took(self, begun: float, ended: float) -> list[float]:
        return [
            seconds
            for each in self._bystanders
            for when, seconds in list(each.calls)
            if begun < when <= ended
        ]

    def _memory(self) -> float:
        memory: int = self._process.memory_info().rss
        return memory / _MIB

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def attackers() -> Iterator[ProcessPoolExecutor]:
    """A process to attack from."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(int).result()  # is there, and has imported what it needs
        yield pool


@contextmanager
def siege(front: FrontName, folder: Path, *, connections: int = 4096) -> Iterator[Siege]:
    """A server in a process of its own, with its bystanders."""
    mesh = Mesh(folder, Authority.create(folder / "pki", ca.DOMAIN))
    own = mesh.identity("cp/coordination")
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "integration.fronts.target", front, own.folder, str(connections)],
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            target = Target(port, mesh.identity("user"), _forged(mesh, folder))
            with ExitStack() as stack:
                bystanders = [
                    stack.enter_context(Bystander(port, target.user, f"coordination.cp.{ca.DOMAIN}"))
                    for _ in range(_BYSTANDERS)
                ]
                time.sleep(1.0)  # so that what is made once is made
                yield Siege(front, target, psutil.Process(process.pid), bystanders)
        finally:
            process.terminate()


def _forged(mesh: Mesh, folder: Path) -> dict[str, Identity]:
    """Certificates that nobody should believe."""
    path, root = spiffe_path("user"), mesh.identity("user").root.read_bytes()
    now, hour = datetime.now(UTC), timedelta(hours=1)
    real = mesh.authority.intermediates
    swapped = replace(mesh.authority, intermediates={**real, TrustClass.USERS: real[TrustClass.WORKLOADS]})
    forged = {
        "expired": ca.identity(mesh.authority, folder, path, lifetime=hour, now=now - 2 * hour),
        "not yet valid": ca.identity(mesh.authority, folder, path, lifetime=hour, now=now + 2 * hour),
        "another authority": ca.identity(Authority.create(folder / "other", ca.DOMAIN), folder, path),
        "another class's intermediate": ca.identity(swapped, folder, path),
        "self-signed": _self_signed(mesh, folder, path),
    }
    for identity in forged.values():
        identity.root.write_bytes(root)
    return forged


def _self_signed(mesh: Mesh, folder: Path, path: str) -> Identity:
    """Our id and all, by nobody but its own key."""
    identity = ca.identity(mesh.authority, folder, path)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "user")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{ca.DOMAIN}{path}")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    identity.certificate.write_bytes(certificate.public_bytes(pem))
    identity.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return identity


def _p99(seconds: list[float]) -> float:
    ordered = sorted(seconds)
    return ordered[len(ordered) * 99 // 100] * 1000 if ordered else float("nan")
