"""The suite, tried on an agent that keeps the contract and on the same with faults; and its outputs."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from junitparser import Failure, JUnitXml, Skipped
from typer.testing import CliRunner, Result

from ..__main__ import app
from ..conformance.case import Verdict
from ..conformance.cases import GROUPS
from .wrong_agent import FAULTS

AGENT = f"{sys.executable} -m services.cli.tests.wrong_agent"

_NEIGHBOURS = {
    "AUTH": ("AUTH-05", "AUTH-06", "AUTH-14", "AUTH-16", "AUTH-17"),
    "EXIT": ("EXIT-01", "EXIT-02", "EXIT-04"),
    "DRAIN": ("DRAIN-01", "DRAIN-03"),
    "REPORT": ("REPORT-01", "REPORT-02"),
    "CLAIM": ("CLAIM-04",),
}
"""Cases that are tried along with the one that finds the fault, where a whole group takes long."""

_APART = ("pause-holds-all",)
"""Faults that another one of their group would hide."""


def conformance(*arguments: str, fault: str = "", **environment: str) -> Result:
    """The command."""
    return CliRunner().invoke(app, ["conformance", *arguments], env={"FAULT": fault, **environment})


def tried(fault: str, only: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Outcomes by id, of the agent with these faults."""
    chosen = [word for prefix in only for word in ("--only", prefix)]
    result = conformance("--command", AGENT, "--json", *chosen, fault=fault)
    assert result.exit_code in (0, 1), result.output
    found = {each["id"]: each for each in json.loads(result.stdout)["cases"]}
    failed = any(each["verdict"] == Verdict.FAIL for each in found.values())
    assert result.exit_code == int(failed)
    return found


def failures(outcomes: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {id: each["message"] for id, each in outcomes.items() if each["verdict"] == Verdict.FAIL}


def _by_group() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for fault, case in FAULTS.items():
        groups[case.partition("-")[0]].append(fault)
    return groups


def _batches() -> list[list[str]]:
    together = [[each for each in faults if each not in _APART] for faults in _by_group().values()]
    return [*together, *([fault] for fault in _APART)]


@pytest.mark.processes
@pytest.mark.parametrize("faults", _batches(), ids=lambda faults: FAULTS[faults[0]])
def test_each_case_of_a_group_finds_its_fault_and_no_other_fails(faults: list[str]) -> None:
    cases = {FAULTS[fault] for fault in faults}
    group = FAULTS[faults[0]].partition("-")[0]
    found = failures(tried(",".join(faults), (*cases, *_NEIGHBOURS.get(group, (f"{group}-",)))))
    assert set(found) == cases, found
    assert all(found.values())


@pytest.mark.processes
@pytest.mark.parametrize("group", _by_group())
def test_an_agent_without_fault_passes(group: str) -> None:
    cases = {FAULTS[fault] for fault in _by_group()[group]}
    outcomes = tried("", (*cases, *_NEIGHBOURS.get(group, (f"{group}-",))))
    assert failures(outcomes) == {}
    assert {id for id in cases if outcomes[id]["verdict"] == Verdict.PASS} == cases


@pytest.mark.hostile
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_one_case_of_its_group_that_is_about_it(fault: str) -> None:
    case = FAULTS[fault]
    assert set(failures(tried(fault, (f"{case.partition('-')[0]}-",)))) == {case}


@pytest.mark.processes
def test_what_is_not_offered_is_skipped_with_the_reason() -> None:
    outcomes = tried("", ("REACT-01", "WORK-01", "LIMIT-01"))
    assert [each["verdict"] for each in outcomes.values()] == [Verdict.SKIP] * 3
    assert all("not offered" in each["message"] for each in outcomes.values())


@pytest.mark.processes
def test_a_method_that_is_not_there_is_named() -> None:
    found = failures(tried("status-unimplemented", ("STATUS-01", "HEALTH-04")))
    assert found == dict.fromkeys(("STATUS-01", "HEALTH-04"), "GetStatus ended with UNIMPLEMENTED: not here")


@pytest.mark.processes
def test_a_program_that_ignores_arguments_does_not_know_capabilities() -> None:
    [outcome] = tried("capabilities-ignored", ("MANIFEST-06",)).values()
    assert (outcome["verdict"], outcome["message"]) == (
        Verdict.SKIP,
        "not offered: --capabilities begins to serve",
    )


def test_ids_are_unique_and_every_case_has_a_demand() -> None:
    cases = [case for group in GROUPS for case in group.cases]
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.demand and case.severity == "must" for case in cases)
    assert set(FAULTS.values()) <= {case.id for case in cases}


def test_list_says_what_would_be_tried() -> None:
    result = conformance("--list", "--only", "manifest-")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == [
        f"MANIFEST-0{n}" for n in range(1, 7)
    ]


def test_table_counts_and_names_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    result = conformance(
        "--command",
        AGENT,
        "--only",
        "MANIFEST-",
        "--only",
        "WORK-01",
        "--junit",
        str(file),
        fault="placement-elsewhere",
    )
    assert result.exit_code == 1
    (line,) = [
        line for line in result.stdout.splitlines() if " FAIL " in line and line.startswith("MANIFEST-02")
    ]
    assert "pod-elsewhere" in line
    assert result.stdout.splitlines()[-1] == "5 PASS, 1 FAIL, 1 SKIP"
    document = JUnitXml.fromfile(str(file))
    assert (document.tests, document.failures, document.skipped, document.errors) == (7, 1, 1, 0)
    found = {case.name.split()[0]: case.result for suite in document for case in suite}
    assert isinstance(found["MANIFEST-02"][0], Failure)
    assert "pod-elsewhere" in found["MANIFEST-02"][0].message
    assert isinstance(found["WORK-01"][0], Skipped)
    assert not found["MANIFEST-01"]


def test_a_program_that_ends_at_once_fails_with_what_it_said() -> None:
    program = f"{sys.executable} -c 'import sys; sys.exit(\"no luck today\")'"
    result = conformance("--command", program, "--only", "MANIFEST-01", "--json")
    assert result.exit_code == 1
    (case,) = json.loads(result.stdout)["cases"]
    assert "no luck today" in case["message"]


def test_no_time_is_a_failure_that_says_so() -> None:
    result = conformance("--command", AGENT, "--only", "MANIFEST-01", "--timeout", "1ms", "--json")
    (case,) = json.loads(result.stdout)["cases"]
    assert (result.exit_code, case["verdict"]) == (1, Verdict.FAIL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say one of"),
        (("127.0.0.1:1", "--command", "true"), "say one of"),
        (("--command", "true", "--verbs"), "--agent-id and --verbs"),
        (("--command", "no-such-program-here"), "no-such-program-here"),
        (("--command", "'unfinished"), "--command"),
        (("--command", "true", "--only", "NOTHING"), "NOTHING"),
        (
            ("--command", "true", "--junit", "/proc/none/report.xml"),
            "--junit: /proc/none/report.xml: No such",
        ),
        (("127.0.0.1:99999",), "'127.0.0.1:99999' is not HOST:PORT"),
    ],
)
def test_usage_is_refused_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = conformance(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_image_without_docker_or_podman_says_so(tmp_path: Path) -> None:
    result = conformance("--image", "example/agent:1", "--only", "MANIFEST", PATH=str(tmp_path))
    assert result.exit_code == 2
    assert "neither docker nor podman" in result.stderr


def test_image_runs_on_the_hosts_network_with_its_folder_and_environment(tmp_path: Path) -> None:
    """A stand-in for docker: it checks what it is given, and runs the program itself."""
    docker = tmp_path / "docker"
    log = tmp_path / "log"
    docker.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "words = sys.argv[1:]\n"
        f"open({str(log)!r}, 'a').write(json.dumps(words) + '\\n')\n"
        "if words[0] == 'run':\n"
        "    given = words[words.index('example/agent:1') + 1:]\n"
        "    program = [sys.executable, '-m', 'services.cli.tests.wrong_agent', *given]\n"
        "    os.execve(sys.executable, program, os.environ)\n"
    )
    docker.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    result = conformance("--image", "example/agent:1", "--only", "MANIFEST-", "--json", PATH=path)
    assert result.exit_code == 0, result.output
    runs = [words for words in map(json.loads, log.read_text().splitlines()) if words[0] == "run"]
    assert runs
    for words in runs:
        assert words[words.index("--network") + 1] == "host"
        assert "AGENTCTL_TLS_DIR" in words
        assert not any("conformance-secret" in word for word in words)
        folder, _, inside = words[words.index("--volume") + 1].partition(":")
        assert folder == inside
    kills = [words for words in map(json.loads, log.read_text().splitlines()) if words[0] == "kill"]
    assert {words[1] for words in kills} <= {words[words.index("--name") + 1] for words in runs}


def test_the_page_names_every_group() -> None:
    page = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text()
    for name in {case.id.partition("-")[0] for group in GROUPS for case in group.cases}:
        assert f"| `{name}` |" in page
