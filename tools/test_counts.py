"""Reads counts of passed, failed and skipped tests from the output and JUnit files of test runners."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

_SUMMARY_LINE = re.compile(r"^\s*(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$")
_GTEST_BEGIN = re.compile(r"^\[ RUN      \] ")
_GTEST_FAILURE = re.compile(r"^\[  FAILED  \] .+ \(\d+ ms\)$")
#: Line of a failed test in the summaries of ctest, pytest and the torch suite.
_FAILURE_LINE = re.compile(r"^\s+\d+ - .+ \((?!Skipped)\w[\w* ]*\)$|^(?:FAILED|ERROR) \S+::|^test\w+: failed")
_MAX_LINES_PER_FAILURE = 30


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of tests by outcome. ``str()`` gives the summary line of ``make test``."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            passed=self.passed + other.passed, failed=self.failed + other.failed, skipped=self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


def counts_in_text(text: str) -> Counts | None:
    """Counts in the last line of the form ``N passed, N failed[, N skipped]``; None without such a line."""
    for line in reversed(text.splitlines()):
        match = _SUMMARY_LINE.match(line)
        if match:
            passed, failed, skipped = (int(group or 0) for group in match.groups())
            return Counts(passed=passed, failed=failed, skipped=skipped)
    return None


def failures_in_text(text: str) -> list[str]:
    """Extracts failed tests from the output of a runner.

    Returns:
        for a GoogleTest test its output, at most the last ``_MAX_LINES_PER_FAILURE`` lines; for other tests the line
        that names the test.
    """
    failures = []
    lines = text.splitlines()
    begin = 0
    for at, line in enumerate(lines):
        if _GTEST_BEGIN.match(line):
            begin = at
        elif _GTEST_FAILURE.match(line):
            failures.append("\n".join(lines[max(begin, at + 1 - _MAX_LINES_PER_FAILURE) : at + 1]))
        elif _FAILURE_LINE.match(line):
            failures.append(line.strip())
    return failures


def counts_in_junit(path: Path) -> Counts | None:
    """Counts in a JUnit file of pytest or ctest; None if the file is missing or incomplete."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    counts = Counts()
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            counts += Counts(failed=1)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            counts += Counts(skipped=1)
        else:
            counts += Counts(passed=1)
    return counts
