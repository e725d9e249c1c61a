"""The open loop on a clock that jumps: a second of waiting takes no time, and nothing takes any by itself."""

from __future__ import annotations

import asyncio
import selectors

import pytest

from libs.errors import UnavailableError
from loadgen.arrivals import Arrivals
from loadgen.ledger import Ledger
from loadgen.loops import Held, Window
from loadgen.openloop import OpenLoop
from loadgen.row import row_of
from loadgen.tally import Mode, Step, Tally, Violations
from loadgen.timed import Timed


class JumpingClock(selectors.DefaultSelector):
    """When nothing is to be done before the next timer, it is that time."""

    now = 1000.0

    def select(self, timeout=None):
        self.now += timeout or 0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._jumping = JumpingClock()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now


class Server:
    """Answers each call after a millisecond, and none during a stall."""

    def __init__(self, stall=(0.0, 0.0)):
        self.stall = stall
        self.submitted: list[str] = []
        self.acked: list[str] = []
        self.under_way = self.most_under_way = 0

    async def call(self):
        now = asyncio.get_running_loop().time()
        begins, ends = self.stall
        await asyncio.sleep(0.001 + (ends - now if begins <= now < ends else 0))


class Client:
    """Verbs of one client, with the same timing as the real ones."""

    def __init__(self, step, server, tally, window):
        self.server = server
        self.tally = tally
        self.timed = Timed(step, tally, window, asyncio.get_running_loop().time)

    async def submit(self, item_ids):
        self.server.under_way += 1
        self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        await self.timed.call("submit", self.server.call)
        self.server.submitted += item_ids
        return len(item_ids)

    async def claim(self, most):
        await self.timed.call("claim", self.server.call)
        return [Held(item_id, 1) for item_id in self.server.submitted[-most:]]

    async def ack(self, held, claim_next):
        await self.timed.call("ack", self.server.call)
        self.server.acked += [item.item_id for item in held]
        self.timed.settled(len(held))
        self.server.under_way -= 1
        return []


def run(server, **changes):
    """The row of one process, 2 s at 100 cycles a second unless told otherwise, and its tally."""
    fields = {
        "clients": 4,
        "connections": 1,
        "processes": 1,
        "warmup": 0.0,
        "duration": 2.0,
        "rate": 100.0,
        "arrivals": Arrivals.FIXED,
        "backlog": 1000,
        "tag": "0" * 18,
    }
    step = Step(Mode.SINGLE, **{**fields, **changes})

    async def measured():
        loop = asyncio.get_running_loop()
        tally = Tally(Ledger(step.tag, 0, step.payload))
        window = Window.of(step, loop.time())
        server.stall = tuple(window.start + moment for moment in server.stall)
        clients = [Client(step, server, tally, window) for _ in range(step.clients)]
        await OpenLoop(step, 0, clients, tally, window, clock=loop.time).run()
        return tally

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        tally = runner.run(measured())
    return row_of("fake", step, [tally], [], Violations()), tally


def test_without_a_stall_both_kinds_of_latency_are_the_same():
    server = Server()
    row, tally = run(server)
    assert tally.arrived == 200 == len(server.acked) == row.calls["cycle"]
    assert row.latencies_ms["cycle"] == row.service_ms["cycle"]
    assert row.latencies_ms["cycle"][0] == pytest.approx(3, rel=0.02)
    assert row.kept_up
    assert row.offered_per_second == 100
    assert (tally.backlog, tally.shed) == (0, 0)


def test_a_stall_is_felt_by_all_that_should_have_begun_in_it():
    """Half a second in two: a quarter of the arrivals, of which only four clients were sent."""
    server = Server(stall=(0.5, 1.0))
    row, tally = run(server)
    assert row.calls["cycle"] == len(server.acked) == 200
    assert row.latencies_ms["cycle"][1] > 250  # p90: of those that came in its first half
    assert row.service_ms["cycle"][1] < 4  # p90: as if nothing had been
    assert row.service_ms["cycle"][4] > 400  # max: the four
    assert tally.backlog > 30
    assert server.most_under_way == 4


def test_all_latencies_of_a_cycle_add_up_from_when_it_should_have_begun():
    row, _ = run(Server(stall=(0.0, 1.9)), clients=1, duration=1.0, rate=1.0)
    of = {verb: values[4] for verb, values in row.latencies_ms.items()}
    assert of["submit"] == pytest.approx(1901, rel=0.02)
    assert of["claim"] == of["ack"] == pytest.approx(1, rel=0.02)
    assert of["cycle"] == pytest.approx(1903, rel=0.02)


def test_a_server_that_is_too_slow_does_not_keep_up_and_the_backlog_is_bounded():
    server = Server()
    row, tally = run(server, clients=1, rate=1000.0, backlog=50)  # a client can do 333
    assert row.offered_per_second == 1000
    assert row.cycles_per_second == pytest.approx(333, rel=0.02)
    assert row.kept_up is False
    assert tally.backlog == row.most_waiting == 50
    assert row.shed_per_second == pytest.approx(1000 - 333 - 50 / 2, rel=0.02)
    assert tally.arrived == row.calls["cycle"] + tally.shed
    assert server.most_under_way == 1


def test_what_arrives_before_the_window_is_served_and_not_measured():
    server = Server()
    row, tally = run(server, warmup=1.0)
    assert len(server.acked) == 300
    assert tally.arrived == row.calls["cycle"] == row.calls["submit"] == 200


def test_a_call_that_had_to_be_repeated_counts_from_when_it_should_have_begun():
    class Failing(Server):
        failures = 3

        async def call(self):
            await super().call()
            if self.failures:
                self.failures -= 1
                raise UnavailableError("for a moment")

    row, _ = run(Failing(), clients=1, rate=1.0, duration=1.0)
    assert row.errors == {"submit UNAVAILABLE": 3}
    assert row.latencies_ms["submit"][4] > 150  # three pauses
    assert row.service_ms["submit"][4] < 2
