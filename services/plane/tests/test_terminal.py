"""Whoever reads, or does not."""

from __future__ import annotations

import os

from ..terminal import Terminal


def test_lines_come_in_order():
    read, write = os.pipe()
    terminal = Terminal(write)
    terminal.say("demo/a", "ready")
    terminal.say("", "stopped")
    terminal.close()
    os.close(write)
    with open(read) as pipe:
        first, second = pipe.read().splitlines()
    assert first[10:] == f"{'demo/a':<32}  ready"
    assert second == "stopped"


def test_nobody_is_waited_for_who_does_not_read():
    read, write = os.pipe()
    terminal = Terminal(write)
    for _ in range(5000):  # more than any pipe holds
        terminal.say("", "x" * 1000)
    os.close(read)  # and then they go away
    terminal.say("", "nobody hears this")
    terminal.close()
    os.close(write)
