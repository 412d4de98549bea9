# SPDX-License-Identifier: Apache-2.0
"""tools/run_ctest.py: its closing line counts single tests; a test that crashes, hangs or finds none is a failure."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import run_ctest
from other_processes import wait_until_ended

#: One test that passed, one that failed, and one that was skipped.
JUNIT = """<testsuites><testsuite>
  <testcase classname="tests.x" name="a"/><testcase name="b"><error message="in set-up"/>
    <system-err>what the program printed</system-err></testcase>
  <testcase name="c"><skipped type="pytest.xfail"/></testcase>
</testsuite></testsuites>"""
GOOD_JUNIT = "<testsuites><testcase name='a'/></testsuites>"

Captured = pytest.CaptureFixture[str]


def run(folder: Path, captured: Captured, *tests: str) -> tuple[int, list[str]]:
    """Runs the tests that a CTestTestfile describes; returns exit status and lines of output."""
    (folder / "CTestTestfile.cmake").write_text("\n".join(tests))
    status = run_ctest.main([str(folder), "--junit", str(folder / "all.xml")])
    return status, captured.readouterr().out.splitlines()


def add_test(name: str, code: str, properties: str) -> str:
    command = f'add_test({name} "{sys.executable}" "-c" [==[{code}]==])'
    return f"{command}\nset_tests_properties({name} PROPERTIES {properties})"


def writes_junit(folder: Path, name: str, code: str, junit: str = JUNIT) -> str:
    """A test that writes a JUnit file, as pytest does, and then runs ``code``."""
    target = folder / f"test-results/{name}.xml"
    return add_test(name, f"open({str(target)!r}, 'w').write({junit!r})\n{code}", "LABELS python")


def test_single_tests_count_and_failures_come_again(tmp_path: Path, capsys: Captured) -> None:
    status, lines = run(
        tmp_path,
        capsys,
        add_test("good", "print(1)", "LABELS part"),
        add_test("left_out", "exit(77)", "SKIP_RETURN_CODE 77 LABELS part"),
        add_test("bad", "print('the cause'); exit(1)", "LABELS part"),
        writes_junit(tmp_path, "pytest", "exit(1)"),
    )
    assert status == 1
    assert lines[-1] == "2 passed, 2 failed, 2 skipped"
    assert [line.split(" in ")[0].split() for line in lines[-3:-1]] == [
        [name, "1", "passed,", "1", "failed,", "1", "skipped"] for name in ("part", "pytest")
    ]
    assert lines.index("-- bad") < lines.index("the cause") < lines.index("-- b")
    assert lines.index("-- b") < lines.index("in set-up") < lines.index("what the program printed")
    assert len(run_ctest.read_cases(tmp_path / "all.xml")) == 6


@pytest.mark.parametrize(
    ("code", "junit", "counts"),
    [
        ("import os; os.abort()", JUNIT, "1 passed, 1 failed, 1 skipped"),
        ("exit(1)", GOOD_JUNIT, "1 passed, 1 failed, 0 skipped"),
        ("exit(1)", "<testsuites><testcase", "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_a_failure_is_explained_by_a_single_test_or_counts(
    tmp_path: Path, capsys: Captured, code: str, junit: str, counts: str
) -> None:
    status, lines = run(tmp_path, capsys, writes_junit(tmp_path, "pytest", code, junit))
    assert (status, lines[-1]) == (1, counts)


def test_a_run_without_tests_fails(tmp_path: Path, capsys: Captured) -> None:
    status, lines = run(tmp_path, capsys)
    assert (status, lines[-1]) == (1, "0 passed, 0 failed, 0 skipped")


def starts_a_child(folder: Path) -> str:
    return (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(folder / 'pid.new')!r}, 'w').write(str(child.pid))\n"
        f"import os; os.rename({str(folder / 'pid.new')!r}, {str(folder / 'pid')!r})\n"
        "time.sleep(60)\n"
    )


def test_a_test_out_of_time_takes_its_children_with_it(tmp_path: Path, capsys: Captured) -> None:
    started = time.monotonic()
    status, lines = run(tmp_path, capsys, add_test("slow", starts_a_child(tmp_path), "TIMEOUT 3"))
    assert (status, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")
    assert time.monotonic() - started < 30
    wait_until_ended([int((tmp_path / "pid").read_text())])


def test_tests_end_with_a_run_that_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "CTestTestfile.cmake").write_text(add_test("slow", starts_a_child(tmp_path), "TIMEOUT 60"))
    with subprocess.Popen([sys.executable, run_ctest.__file__, str(tmp_path)], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
    assert process.returncode == 143
    wait_until_ended([int((tmp_path / "pid").read_text())])
