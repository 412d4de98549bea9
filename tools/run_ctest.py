# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a CMake build folder by ctest, and ends in one line: N passed, N failed, N skipped.

A test of ctest may consist of others: pytest does, and so does a stage of CI that runs this program. If its name is X
and it writes the JUnit file ``test-results/X.xml``, the tests in that file count instead. X counts as one failure more
if it fails although none of its tests did.
Tests named X.0, X.1 and so on share a line of the summary. Failures are repeated at the end, and all results are
written to one JUnit file. The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree.ElementTree import Element

_OUTCOMES = ("passed", "failed", "skipped")
_MAX_LINES_PER_FAILURE = 30
_MAX_LINES_OF_STDERR = 15
#: Number at the end of the name of a test that is split into several.
_SHARD = re.compile(r"\.\d+$")


def outcome_of(case: Element) -> str:
    """Outcome of a ``testcase`` element of ctest, pytest or GoogleTest."""
    status = case.get("status")
    if case.find("failure") is not None or case.find("error") is not None or status == "fail":
        return "failed"
    return "skipped" if case.find("skipped") is not None or status in ("notrun", "disabled") else "passed"


def read_cases(path: Path) -> list[Element]:
    """Test cases of a JUnit file; none if the file is missing or incomplete."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def group_cases(cases: Iterable[Element], folder: Path, *, by_label: bool) -> dict[str, list[Element]]:
    """Groups test cases for the table.

    Args:
        cases: results of ctest.
        folder: holds the JUnit files of tests that consist of other tests.
        by_label: put tests without such a file into the group of their label.
    """
    groups: dict[str, list[Element]] = {}
    for case in cases:
        name = case.get("name", "")
        own = read_cases(folder / f"{name}.xml")
        if not own or (outcome_of(case) == "failed" and "failed" not in map(outcome_of, own)):
            own.append(case)
        label = case.find("properties/property[@name='cmake_labels']")
        is_alone = len(own) > 1 or own[0] is not case or not by_label or label is None
        group = _SHARD.sub("", name) if is_alone or label is None else label.get("value", "")
        groups.setdefault(group, []).extend(own)
    return groups


def report(groups: Mapping[str, list[Element]], junit: Path, seconds: Mapping[str, float] | None = None) -> int:
    """Prints failures, one line for each group and the total, writes the JUnit file, and returns the exit status.

    Args:
        groups: test cases by the name of their line.
        junit: the file that gets all test cases.
        seconds: measured times by group; else the times of a group's test cases are added up.
    """
    cases = [case for group in groups.values() for case in group]
    suite = Element("testsuite", name="headway", tests=str(len(cases)))
    suite.extend(cases)
    failed = [case for case in cases if outcome_of(case) == "failed"]
    if failed:
        print("\n== failed", *map(_describe_failure, failed), sep="\n")
    print("\n== summary")
    for name, group in groups.items():
        duration_s = (seconds or {}).get(name) or sum(float(case.get("time") or 0) for case in group)
        print(f"  {name:<24} {_counts(group)} in {duration_s:.0f} s")
    print(_counts(cases), flush=True)
    junit.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(junit, encoding="utf-8")
    return 1 if failed or not cases else 0


def _counts(cases: Iterable[Element]) -> str:
    counts = Counter(map(outcome_of, cases))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES)


def _describe_failure(case: Element) -> str:
    name = "::".join(filter(None, dict.fromkeys((case.get("classname"), case.get("name")))))
    texts = [case.find(tag) for tag in ("failure", "error", "system-out")]
    text = "\n".join(each.text or each.get("message") or "" for each in texts if each is not None)
    stderr = (case.findtext("system-err") or "").splitlines()  # Why a program failed that a test of pytest ran.
    lines = [*text.splitlines()[-_MAX_LINES_PER_FAILURE:], *stderr[-_MAX_LINES_OF_STDERR:]]
    return "\n".join([f"-- {name}", *lines])


def run_ctest(build_dir: Path, arguments: list[str]) -> tuple[int, list[Element]]:
    """Runs ctest in ``build_dir``; returns its exit status and test cases."""
    results = build_dir / "test-results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True, exist_ok=True)
    beside = Path(sys.executable).with_name("ctest")
    command = [str(beside) if beside.exists() else "ctest", "--test-dir", str(build_dir), "--no-tests=error",
               "--output-junit", str(results / "ctest.xml"), "--timeout", "300", *arguments]  # fmt: skip
    process = subprocess.Popen(command, process_group=0)
    try:
        status = process.wait()
    finally:  # Nothing that ctest started outlives this program.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return status, read_cases(results / "ctest.xml")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_dir", type=Path, help="CMake build folder")
    # A test has several ranks (threads or processes). More tests than half the cores would starve each other.
    jobs = max(2, (os.cpu_count() or 1) // 2)
    parser.add_argument("--jobs", type=int, default=jobs, help="tests at once (default: %(default)s)")
    parser.add_argument("--each", action="store_true", help="a line of the summary for each test")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="gets all results (default: test-results/all.xml)")
    chosen, arguments = parser.parse_known_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    build_dir = chosen.build_dir.resolve()
    status, cases = run_ctest(build_dir, ["-j", str(chosen.jobs), *arguments])
    groups = group_cases(cases, build_dir / "test-results", by_label=not chosen.each)
    times = {case.get("name", ""): float(case.get("time") or 0) for case in cases}
    failed = report(groups, chosen.junit or build_dir / "test-results/all.xml", times)
    return failed or int(status != 0 and "failed" not in map(outcome_of, cases))


if __name__ == "__main__":
    sys.exit(main())
