from __future__ import annotations

import os
import subprocess
import sys

from loadgen import processes

SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_a_tree_holds_children_and_what_ended_children_used():
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        assert parent.stdin
        while processes.usage(processes.tree(parent.pid)).cpu_seconds < 0.3:
            assert parent.poll() is None
        pids = {process.pid for process in processes.tree(os.getpid())}
        assert {os.getpid(), parent.pid} <= pids
        parent.stdin.write(b"\n")


def test_memory_is_counted_in_bytes():
    assert 5e6 < processes.usage(processes.tree(os.getpid())).resident_bytes < 5e9


def test_a_process_that_is_not_there_has_no_tree():
    assert processes.tree(0) == []


def test_only_postgres_below_the_folder_counts(tmp_path):
    assert processes.postgres_under(tmp_path) == []


def test_the_machine_is_busy_with_what_we_do():
    before = processes.machine_seconds()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert processes.machine_seconds() - before > 0.25
