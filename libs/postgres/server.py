"""The embedded server: private to us, durable, shared by processes, started again if it is killed."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
from psycopg.conninfo import make_conninfo

from .account import Account, StartError
from .postmaster import Postmaster, ends, goes_on

_log = logging.getLogger(__name__)

# PostgreSQL is durable by itself: what makes it so is not set here, and a test may unset it.
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "dynamic_shared_memory_type": "mmap",  # containers have a small /dev/shm
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "random_page_cost": "1.1",
    "wal_buffers": "16MB",
    "min_wal_size": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "5s",
    "log_checkpoints": "off",
}
# Whoever has the socket is its superuser, so only the server's user may reach it.
_INITDB = (
    "--username=postgres",
    "--auth-local=trust",
    "--auth-host=reject",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--set=listen_addresses=",  # for whoever starts it by hand
    "--set=unix_socket_permissions=0700",
    "--no-instructions",
)
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
_RECOVERY_SECONDS = 300.0
_STOP_SECONDS = 10.0
_WATCH_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LEFTOVERS = ("pre-existing shared memory block", '"postmaster.pid" already exists')
_LEFTOVER_SECONDS = 15.0
_LONGEST_FOLDER = 85  # of a socket; macOS takes 103 bytes with its name
_TEMPORARY = Path("/tmp")  # not TMPDIR: that can be long too, or closed to the server's user
_PREFIX = "agentctl-pg-"


@asynccontextmanager
async def embedded(data_dir: Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """The DSN of a PostgreSQL whose data are in `data_dir`, made and started if need be.

    Durable. It listens on a Unix socket that only its user can reach, logs to `data_dir/log`, is started
    again if it is killed, and stops when the last process that uses it leaves. `environment`: variables
    that the server has beside its own, if it is us who start it. Raises StartError.
    """
    server = _Server(data_dir, environment or {})
    try:
        await asyncio.to_thread(server.enter)
        keeping = asyncio.create_task(_keep(server))
        try:
            yield server.dsn()
        finally:
            keeping.cancel()
    finally:
        await asyncio.to_thread(server.leave)


async def _keep(server: _Server) -> None:
    """Start the server again whenever it was killed; one that was stopped has its reasons."""
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        if server.was_killed():
            _log.warning("PostgreSQL in %s was killed: starting it again", server.data)
            try:
                await asyncio.to_thread(server.start)
            except StartError as error:
                _log.error("%s", error)


def _dsn(server: Postmaster) -> str:
    return make_conninfo(host=str(server.sockets), port=server.port, user="postgres", dbname="postgres")


def _answers(server: Postmaster) -> bool:
    """Whether it serves: one that is just being killed still looks alive."""
    try:
        psycopg.connect(_dsn(server), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


class _Server:
    """The server of a data folder, as one of its users sees it.

    Two locks that the kernel takes from whoever dies: whoever starts or stops it holds the folder, and every
    user has a share of PG_VERSION, so that the last one can tell.
    """

    def __init__(self, data_dir: Path, environment: Mapping[str, str]) -> None:
        self.data = data_dir.resolve()
        self._environment = {**_ENVIRONMENT, **environment}
        self._log = self.data / "log"
        self._turn = threading.Lock()
        self._left = False
        self._process: psutil.Process | None = None
        self._sockets = self.data
        self._folder = self._share = -1

    def enter(self) -> None:
        """Become a user of the server; return when it accepts connections."""
        with self._turn, self._explained():
            self._account = Account.of(self.data)
            self._programs = self._account.programs()
            self.data.parent.mkdir(parents=True, exist_ok=True)
            for path in (self.data.parent, self._programs / "postgres"):
                if obstacle := self._account.obstacle(path):
                    raise StartError(
                        f"PostgreSQL does not run as root, and user {self._account.uid} that runs it may not"
                        f" enter {obstacle}: run `chmod o+x {obstacle}` or choose another folder"
                    )
            self.data.mkdir(mode=0o700, exist_ok=True)
            self._folder = os.open(self.data, os.O_RDONLY)
            with _held(self._folder):
                if not any(self.data.iterdir()):
                    self._initialise()
                if not (self.data / "PG_VERSION").exists():
                    raise StartError("the folder is neither empty nor a database")
                self._share = os.open(self.data / "PG_VERSION", os.O_RDONLY)
                fcntl.flock(self._share, fcntl.LOCK_SH)
                self._await_ready()

    def start(self) -> None:
        """Start it unless it runs; return when it accepts connections."""
        with self._turn:
            if not self._left:
                with self._explained(), _held(self._folder):
                    self._await_ready()

    def leave(self) -> None:
        """Stop it if nobody else uses it."""
        self._left = True  # ends a start that nobody waits for any more
        with self._turn:
            if self._share >= 0:
                with _held(self._folder), suppress(BlockingIOError):
                    fcntl.flock(self._share, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._stop()
            for descriptor in (self._share, self._folder):
                if descriptor >= 0:
                    os.close(descriptor)
            self._share = self._folder = -1

    def dsn(self) -> str:
        found = Postmaster.of(self.data)
        if found is None:
            raise StartError(f"PostgreSQL in {self.data} was stopped")
        return _dsn(found)

    def was_killed(self) -> bool:
        if self._process is not None and goes_on(self._process):  # asked each second: the cheap way first
            return False
        found = Postmaster.of(self.data)
        return found is not None and found.process is None

    def _initialise(self) -> None:
        self._account.own(self.data)
        self.data.chmod(0o700)
        command = self._account.command(self._programs / "initdb", *_INITDB, "--pgdata", self.data)
        done = subprocess.run(command, capture_output=True, env=_ENVIRONMENT, cwd="/", check=False)
        if done.returncode:
            raise StartError(f"initdb failed: {done.stderr.decode(errors='replace').strip()}")

    def _await_ready(self) -> None:
        child: subprocess.Popen[bytes] | None = None
        began = time.monotonic()
        while not self._left:
            found = Postmaster.of(self.data)
            if found is not None and found.process is not None:
                self._process = found.process
                if found.status == "ready" and _answers(found):
                    self._sockets = found.sockets
                    return
            elif child is None:
                position = self._log.stat().st_size if self._log.exists() else 0
                child = self._launch()
            if child is not None and child.poll() is not None:
                said = self._said(position)
                if time.monotonic() - began > _LEFTOVER_SECONDS or not any(
                    hint in said for hint in _LEFTOVERS
                ):
                    raise StartError(f"it ended with exit code {child.returncode}")
                child = None  # the processes of a killed server are still going
                time.sleep(0.5)
            if time.monotonic() - began > _RECOVERY_SECONDS:
                raise StartError(f"it accepts no connections after {_RECOVERY_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        raise StartError("nobody waits for it any more")

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = _SETTINGS | {"unix_socket_directories": str(self._socket_folder())}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            self._account.own(log)
            child = subprocess.Popen(
                self._account.command(self._programs / "postgres", "-D", self.data, *options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd="/",
                start_new_session=True,  # Ctrl-C is for us; we stop it
            )
        finally:
            os.close(log)
        threading.Thread(target=child.wait, daemon=True).start()  # it may end when we have left
        return child

    def _socket_folder(self) -> Path:
        """The data folder, or if its path does not do for a socket, a private one with a short name."""
        if len(os.fsencode(self.data)) <= _LONGEST_FOLDER and not set(str(self.data)) & set(',"'):
            return self.data
        before = Postmaster.of(self.data)
        if before is not None and self._is_made(before.sockets):
            return before.sockets  # of one that was killed, where its clients look for it
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
        self._account.own(made)
        return made

    def _is_made(self, folder: Path) -> bool:
        """Whether that is a socket folder of `_socket_folder`'s making, and nobody else's."""
        with suppress(OSError):
            found = folder.lstat()
            private = found.st_uid == self._account.uid and found.st_mode == stat.S_IFDIR | 0o700
            return private and folder.parent == _TEMPORARY and folder.name.startswith(_PREFIX)
        return False

    def _stop(self) -> None:
        found = Postmaster.of(self.data)
        process = found.process if found is not None else self._process  # its folder may be gone
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):  # fast, at once, and whatever it takes
            if process is None or ends(process, number, _STOP_SECONDS):
                break
        if self._is_made(self._sockets):
            shutil.rmtree(self._sockets, ignore_errors=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, KeyError, subprocess.SubprocessError, StartError) as error:
            there = next(folder for folder in (self.data, *self.data.parents) if os.path.exists(folder))
            free = shutil.disk_usage(there).free >> 20
            raise StartError(
                f"PostgreSQL did not start in {self.data} ({free} MiB free): {error}\n{self._said(-2000)}"
            ) from error

    def _said(self, position: int) -> str:
        """Its log from there on; negative: from there before the end."""
        try:
            text = self._log.read_bytes()
        except OSError:
            return "it left no log"
        return text[position:].decode(errors="replace")


@contextmanager
def _held(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
