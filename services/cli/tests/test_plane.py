from __future__ import annotations

import pytest

from ..choices import Front, Store
from ..output import FailedError
from ..plane import Plan


def plan(instruction: str, queue: str = "demo/q") -> Plan:
    return Plan(queue, 1, Store.MEMORY, None, instruction, 0, Front.H2CORN, {})


@pytest.mark.parametrize("mistyped", ["tranlsate.txt", "prompts/translate", "/no/such.md"])
def test_a_path_to_nothing_is_no_instruction(mistyped):
    with pytest.raises(FailedError, match=r"--instruction .*no such file") as raised:
        plan(mistyped)
    assert raised.value.code == 2


def test_words_and_files_are_instructions(tmp_path):
    (tmp_path / "translate.txt").write_text("Translate.")
    for instruction in (
        "Summarise.",
        "Say yes/no.",
        "To German e.g. as in a.txt",
        str(tmp_path / "translate.txt"),
    ):
        assert plan(instruction).instruction == instruction


def test_a_queue_has_a_namespace():
    with pytest.raises(FailedError, match="namespace/name"):
        plan("Summarise.", queue="q")
