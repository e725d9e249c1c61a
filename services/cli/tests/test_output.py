from __future__ import annotations

import json

from typer.testing import CliRunner

from agentctl.coordination.v1 import work_pb2

from .. import items, output
from ..__main__ import app
from ..choices import ResultFormat


def test_nothing_printed_can_steer_a_terminal(capsys):
    output.show(("NAME", "NOTE"), [("a\x1b[31m", "two\nlines\r\x07")])
    item = work_pb2.Item(
        id="i",
        state=work_pb2.WORK_STATE_SUCCEEDED,
        result=b"\x1b]0;owned\x07x",
        result_content_type="text/plain",
    )
    items.ResultPrinter(ResultFormat.TEXT).print(item)
    items.describe(item)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "two lines" in printed


def test_markup_is_printed_as_it_is(capsys):
    output.show(("NAME",), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_tables_cut_nothing_where_there_is_no_terminal(capsys):
    output.show(("ID", "NOTE"), [("i" * 36, "n" * 1000)])
    assert "n" * 1000 in capsys.readouterr().out


def test_json_has_the_names_of_the_proto_and_zeros(capsys):
    output.emit(work_pb2.Item(id="i", attempt=0, result=b"\x00"))
    found = json.loads(capsys.readouterr().out)
    assert (found["id"], found["attempt"], found["payload_size"], found["result"]) == ("i", 0, 0, "AA==")


def test_an_agent_is_called_by_its_pod():
    assert items.short("spiffe://d/ns/demo/agent/summarize/pod/summarize-1/uid") == "summarize-1"
    assert items.short("spiffe://d/user/ann") == "user/ann"
    assert items.short("") == ""


def test_results_that_are_no_text_are_described():
    item = work_pb2.Item(result=b"\xff\xfe", result_content_type="text/plain")
    assert items.result(item) == "(2 bytes of text/plain)"


def test_every_command_teaches_by_an_example():
    groups = {
        "work": ("submit", "watch", "results", "get", "list", "cancel"),
        "dead": ("list", "redrive", "purge"),
    }
    groups |= {"queues": ("list", "show", "configure", "pause", "resume"), "pki": ("init", "issue", "show")}
    paths = [("up",), ("explain",), ("workers", "release")]
    for path in [*paths, *((group, name) for group, names in groups.items() for name in names)]:
        found = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert found.exit_code == 0
        assert f"agentctl {' '.join(path)}" in found.output.split("Usage", 1)[1].split("\n", 1)[1], path


def test_usage_errors_are_2():
    for arguments in (["nonsense"], ["work", "get"], ["queues", "configure", "a/b", "--lease", "5"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2
