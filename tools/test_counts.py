"""Counts of passed, failed and skipped tests, read from what test runners leave behind."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

_SUMMARY_LINE = re.compile(r"^\s*(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$")
_GTEST_BEGIN = re.compile(r"^\[ RUN      \] ")
_GTEST_FAILURE = re.compile(r"^\[  FAILED  \] .+ \(\d+ ms\)$")
#: A failed test's line in the summary of ctest, of pytest and of the torch suite.
_FAILURE_LINE = re.compile(r"^\s+\d+ - .+ \((?!Skipped)\w[\w* ]*\)$|^(?:FAILED|ERROR) \S+::|^test\w+: failed")
_MAX_LINES_PER_FAILURE = 30


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of tests by outcome. Prints as the summary line that ``make test`` ends with."""

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
    """Counts of the last line of ``text`` that reads ``N passed, N failed[, N skipped]``; None without one."""
    for line in reversed(text.splitlines()):
        match = _SUMMARY_LINE.match(line)
        if match:
            passed, failed, skipped = (int(group or 0) for group in match.groups())
            return Counts(passed=passed, failed=failed, skipped=skipped)
    return None


def failures_in_text(text: str) -> list[str]:
    """What ``text`` says of failed tests: of a C++ test all that it printed (its end, if that is long), of another the
    line that names it."""
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
    """Counts of a JUnit file as pytest and ctest write it; None where it is missing or cut short."""
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
