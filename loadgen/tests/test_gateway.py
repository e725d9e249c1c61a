"""The load on a gateway: what counts as an answer, what is told of it, and a run with our gateway in it."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadgen.gateway.closed import Loop, Target
from loadgen.gateway.measure import Plan, Row, bars, measure
from loadgen.gateway.sides import DIRECT, LITELLM, OURS, VARIANTS, Side, sides
from loadgen.gateway.stub import Stub


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="agentctl-gateway-") as name:
        Path(name).chmod(0o711)  # a PostgreSQL that root starts has to get in
        yield Path(name)


@asynccontextmanager
async def serving(protocol=Stub):
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1])


async def counted(target: Target, *, connections: int = 2, streams: bool = False):
    loop = Loop(target, connections, streams=streams)
    try:
        await loop.open(0.05)
        return await loop.count(0.2)
    finally:
        await loop.close()


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_what_the_stub_says_is_counted_and_right(streams):
    async with serving() as target:
        tally = await counted(target, streams=streams)
    assert tally.whole.total > 10
    assert tally.first.total == tally.whole.total
    assert not tally.wrong, tally.sample


class _Refuses(Stub):
    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 429 No\r\nContent-Length: 19\r\n\r\nstub and no model: ")


class _Closes(Stub):
    def data_received(self, data: bytes) -> None:
        self._transport.close()


class _Piecemeal(Stub):
    """Gives an answer in pieces of seven bytes."""

    def data_received(self, data: bytes) -> None:
        transport = self._transport

        class Slow:
            def write(self, data: bytes) -> None:
                for at in range(0, len(data), 7):
                    transport.write(data[at : at + 7])

        self._transport = Slow()  # type: ignore[assignment]
        super().data_received(data)
        self._transport = transport


async def test_an_answer_that_is_none_is_counted_as_wrong():
    async with serving(_Refuses) as target:
        tally = await counted(target)
    assert tally.wrong == tally.whole.total > 0
    assert tally.sample.startswith("HTTP/1.1 429")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_an_answer_may_come_in_any_pieces(streams):
    async with serving(_Piecemeal) as target:
        tally = await counted(target, streams=streams)
    assert tally.whole.total > 0
    assert not tally.wrong, tally.sample


async def test_a_lost_connection_ends_the_step():
    async with serving(_Closes) as target:
        with pytest.raises(ConnectionError):
            await counted(target)


async def test_who_does_not_listen_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await counted(Target("127.0.0.1", port))


async def test_what_is_added_is_the_difference_to_no_gateway():
    async with serving() as target:
        plan = Plan([1], seconds=0.2, rounds=1)
        rows = await measure(plan, [Side(DIRECT, target), Side(LITELLM, target, os.getpid())], lambda _: None)
    assert [(row.side, row.streams) for row in rows] == [
        (side, streams) for streams in (False, True) for side in (DIRECT, LITELLM)
    ]
    direct, through = rows[:2]
    assert (direct.added_p50_ms, direct.per_core) == (0, None)
    assert through.added_p50_ms == through.p50_ms - direct.p50_ms
    assert through.per_core is not None
    assert through.resident_mib > 10


def row(side: str, *, added: float = 0.0, per_core: float | None = None, concurrency: int = 1) -> Row:
    numbers = dict.fromkeys(Row.__dataclass_fields__, 0.0)
    told = {"side": side, "streams": False, "concurrency": concurrency, "per_core": per_core, "sample": ""}
    return Row(**{**numbers, **told, "added_p50_ms": added})  # type: ignore[arg-type]


def test_a_bar_is_missed_by_who_adds_too_much_or_is_not_so_much_better():
    rows = [
        row(DIRECT),
        row(OURS, added=0.9, per_core=2000),
        row(OURS, added=9.0, per_core=2500, concurrency=64),
        row("ours, 2 budgets, PostgreSQL", added=1.1, per_core=900),
        row(LITELLM, added=7, per_core=251),
    ]
    assert [is_met for _, is_met in bars(rows)] == [True, False, False]
    rows[-1] = row(LITELLM, added=7, per_core=249)
    assert [is_met for _, is_met in bars(rows)] == [True, False, True]


def test_without_litellm_there_is_no_bar_of_it():
    assert len(bars([row(DIRECT), row(OURS, added=0.5, per_core=2000)])) == 1


@pytest.mark.processes
@pytest.mark.postgres
async def test_our_gateway_is_measured_in_all_its_variants(folder):
    with sides(None, folder, os.environ) as found:
        rows = await measure(Plan([2], seconds=0.5, rounds=1), found, lambda _: None)
    assert [each.name for each in found] == [DIRECT, *VARIANTS]
    for each in rows:
        assert each.requests > 0
        assert each.wrong == 0, each.sample
        assert (each.database_us > 0) == (each.side == "ours, 2 budgets, PostgreSQL")
