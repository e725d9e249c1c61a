"""What the command tells: a table for people, JSON for programs, JUnit for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from .. import output
from .case import Case, Outcome, Verdict

_COLUMNS = ("ID", "DEMAND", "VERDICT", ">SECONDS", "MESSAGE")


def listing(cases: Iterable[Case]) -> None:
    """What would be tried."""
    output.show(("ID", "SEVERITY", "DEMAND"), ((case.id, case.severity, case.demand) for case in cases))


def table(outcomes: Sequence[Outcome]) -> None:
    """Every case with what came of it, and how many came out how."""
    output.show(
        _COLUMNS,
        (
            (each.case.id, each.case.demand, each.verdict, f"{each.seconds:.1f}", each.message)
            for each in outcomes
        ),
    )
    counts = Counter(each.verdict for each in outcomes)
    typer.echo(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict))


def json(outcomes: Sequence[Outcome]) -> None:
    """The same as one document."""
    output.emit(
        {
            "cases": [
                {
                    "id": each.case.id,
                    "demand": each.case.demand,
                    "severity": each.case.severity,
                    "verdict": each.verdict.value,
                    "message": each.message,
                    "seconds": round(each.seconds, 3),
                }
                for each in outcomes
            ],
            "counts": dict(Counter(each.verdict.value for each in outcomes)),
        }
    )


def junit(outcomes: Sequence[Outcome], file: Path) -> None:
    """The same as a file of JUnit's XML: a suite for each group of ids. OSError."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    document = JUnitXml("agentctl conformance")
    suites: dict[str, TestSuite] = {}
    for each in outcomes:
        group = each.case.id.partition("-")[0]
        suite = suites.setdefault(group, TestSuite(group))
        found = TestCase(
            f"{each.case.id} {each.case.demand}", classname=f"conformance.{group}", time=each.seconds
        )
        if each.verdict is Verdict.FAIL:
            found.result = [Failure(output.printable(each.message))]
        elif each.verdict is Verdict.SKIP:
            found.result = [Skipped(output.printable(each.message))]
        suite.add_testcase(found)
    for suite in suites.values():
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    document.write(str(file), pretty=True)
