"""A runner that crashes, hangs or prints nothing is a failure, and its processes do not outlive it."""

import os
import sys
import time
from pathlib import Path

import pytest
from bounded_process import Finished, run_bounded
from run_ci import Stage
from run_ci import failures_of as failures_of_stage
from run_ci import judge as judge_stage
from run_tests import Runner, judge, run_runner
from test_counts import Counts, counts_in_text


def runner(code: str, **settings: object) -> Runner:
    values = {"name": "sample", "command": [sys.executable, "-c", code], "limit_s": 20.0, "count": counts_in_text}
    return Runner(**{**values, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "counts", "problem"),
    [
        ("print('2 passed, 0 failed, 1 skipped')", Counts(passed=2, skipped=1), ""),
        ("print('2 passed, 1 failed'); raise SystemExit(1)", Counts(passed=2, failed=1), ""),
        ("print('2 passed, 0 failed'); raise SystemExit(1)", Counts(passed=2, failed=1), "although no test failed"),
        ("print('0 passed, 0 failed')", Counts(failed=1), "ran no test"),
        ("print('all fine')", Counts(failed=1), "no counts"),
        ("import os; os.abort()", Counts(failed=1), "exit status 134"),
    ],
)
def test_a_runner_is_judged_by_counts_and_exit_status(tmp_path: Path, code: str, counts: Counts, problem: str) -> None:
    found, line = run_runner(runner(code), tmp_path)
    assert found == counts
    assert problem in line
    assert ("FAILED" in line) == bool(problem)


def test_a_runner_out_of_time_fails_even_after_its_summary() -> None:
    finished = Finished(exit_status=137, output="1 passed, 0 failed", duration_s=1, timed_out=True)
    counts, problem = judge(runner(""), finished)
    assert counts == Counts(passed=1, failed=1)
    assert problem == "ran out of its 20 s"


def test_a_missing_runner_is_a_failure(tmp_path: Path) -> None:
    counts, line = run_runner(runner("", needs=tmp_path / "run.py"), tmp_path)
    assert counts == Counts(failed=1)
    assert "is missing" in line


def test_tests_left_out_count_as_skipped(tmp_path: Path) -> None:
    counts, line = run_runner(runner("print('1 passed, 0 failed')", left_out=Counts(skipped=4)), tmp_path)
    assert counts == Counts(passed=1, skipped=4)
    assert "4 need a GPU" in line


def test_a_command_out_of_time_takes_its_children_with_it() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    finished = run_bounded([sys.executable, "-c", code], limit_s=3)
    assert finished.timed_out
    assert time.monotonic() - started < 30
    assert_gone(int(finished.output.split()[0]))


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


@pytest.mark.parametrize(
    ("has_counts", "status", "output", "counts"),
    [
        (False, 0, "", Counts(passed=1)),
        (False, 1, "", Counts(failed=1)),
        (False, 77, "", Counts(skipped=1)),
        (True, 0, "3 passed, 0 failed", Counts(passed=3)),
        (True, 0, "", Counts(failed=1)),
        (True, 1, "3 passed, 2 failed", Counts(passed=3, failed=2)),
        (True, 2, "3 passed, 0 failed", Counts(passed=3, failed=1)),
        (True, 77, "", Counts(failed=1)),
    ],
)
def test_a_ci_stage_is_judged_by_counts_or_exit_status(
    has_counts: bool, status: int, output: str, counts: Counts
) -> None:
    stage = Stage(name="sample", group="sample", commands=[], limit_s=1, has_counts=has_counts)
    assert judge_stage(stage, Finished(exit_status=status, output=output, duration_s=0, timed_out=False)) == counts


def test_of_a_stage_that_names_no_failed_test_the_last_lines_are_shown() -> None:
    output = "".join(f"line {number}\n" for number in range(100))
    finished = Finished(exit_status=1, output=output, duration_s=1, timed_out=False)
    assert failures_of_stage(finished) == ["\n".join(f"line {number}" for number in range(80, 100))]
