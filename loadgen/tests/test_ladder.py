from __future__ import annotations

from loadgen.sweep import Ladder
from loadgen.tally import Mode, Step

TEMPLATE = Step(Mode.CHECK, clients=1, connections=1, processes=1, claim_next=True)


def steps(**changes):
    fields = {
        "modes": [Mode.SINGLE, Mode.BATCH, Mode.LIBRARY],
        "clients": [1, 256],
        "connections": 16,
        "processes": None,
        "batch": 100,
        "template": TEMPLATE,
    }
    return list(Ladder(**{**fields, **changes}).steps())


def test_the_control_step_comes_first_and_each_rung_has_its_shape():
    shapes = [(s.mode, s.clients, s.connections, s.processes, s.batch, s.claim_next) for s in steps()]
    assert shapes == [
        (Mode.CHECK, 16, 16, 2, 1, False),
        (Mode.SINGLE, 1, 1, 1, 1, True),
        (Mode.SINGLE, 256, 16, 2, 1, True),
        (Mode.BATCH, 1, 1, 1, 100, True),
        (Mode.BATCH, 256, 16, 2, 100, True),
        (Mode.LIBRARY, 1, 0, 1, 1, False),
        (Mode.LIBRARY, 256, 0, 4, 1, False),
    ]


def test_clients_may_have_a_connection_each_and_processes_at_least_one():
    assert [s.connections for s in steps(modes=[Mode.SINGLE], connections=None)] == [16, 1, 256]
    assert [s.connections for s in steps(modes=[Mode.SINGLE], connections=1, processes=4)] == [4, 1, 4]


def test_no_queue_and_no_id_is_used_twice():
    ladder = steps()
    assert len({s.queue for s in ladder}) == len({s.tag for s in ladder}) == len(ladder)


def test_shares_of_all_processes_are_the_whole():
    step = Step(Mode.SINGLE, clients=10, connections=7, processes=4)
    assert [step.share(10, process) for process in range(4)] == [3, 3, 2, 2]
    assert sum(step.share(7, process) for process in range(4)) == 7


def test_rates_are_open_loops_in_place_of_closed_ones():
    open_steps = steps(rates=[100, 5000], modes=[Mode.SINGLE, Mode.CONTENTION], under_way=64)
    assert [(s.mode, s.clients, s.rate, s.claim_next) for s in open_steps] == [
        (Mode.CHECK, 16, 0, False),
        (Mode.SINGLE, 64, 100, False),
        (Mode.SINGLE, 64, 5000, False),
        (Mode.CONTENTION, 1, 0, False),
        (Mode.CONTENTION, 256, 0, False),
    ]
