"""Runs every test runner of the project and ends in one line: N passed, N failed, N skipped.

A runner that crashes, runs out of time, or reports nothing counts as one failure more, and the exit status is 1
when anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bounded_process import Finished, end_on_sigterm, run_bounded
from test_counts import Counts, counts_in_junit, counts_in_text

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """One program that runs tests, and the way to count their results."""

    name: str
    command: list[str]
    limit_s: float
    count: Callable[[str], Counts | None]  #: returns the runner's counts, given its output; None: no counts
    needs: Path | None = None  #: file that must exist; a missing one counts as a failure
    skip_reason: str | None = None  #: reason why this machine cannot run it; None: it can
    left_out: Counts = field(default_factory=Counts)  #: tests that are not selected on this machine; counted as skipped
    environment: dict[str, str] | None = None


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def gtest_runner(build_dir: Path, results: Path, jobs: int) -> Runner:
    """Creates the runner of the C++ tests: ctest, ``jobs`` at once. Without a GPU, ``gpu`` tests are skipped."""
    junit = results / "ctest.xml"
    junit.unlink(missing_ok=True)
    ctest = _tool("ctest")
    command = [ctest, "--test-dir", str(build_dir), "--output-on-failure", "--output-junit", str(junit.resolve())]
    command += ["--timeout", "300", "-j", str(jobs), "--no-tests=error", "--progress"]
    left_out = Counts()
    if not has_gpu():
        command += ["-LE", "gpu"]
        left_out = Counts(skipped=_count_labelled(ctest, build_dir, "gpu"))
    return Runner(
        name="ctest",
        command=command,
        limit_s=1800,
        count=lambda output: counts_in_junit(junit),
        needs=build_dir / "CTestTestfile.cmake",
        left_out=left_out,
    )


def _count_labelled(ctest: str, build_dir: Path, label: str) -> int:
    listing = subprocess.run(
        [ctest, "--test-dir", str(build_dir), "-N", "-L", label], capture_output=True, text=True, timeout=60
    )
    match = re.search(r"Total Tests: (\d+)", listing.stdout)
    return int(match.group(1)) if match else 0


def pytest_runner(results: Path) -> Runner:
    junit = results / "pytest.xml"
    junit.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-rfEs", f"--junitxml={junit}"]
    return Runner(
        name="pytest",
        command=command,
        limit_s=1500,
        count=lambda output: counts_in_junit(junit),
        needs=ROOT / "tests",
    )


def spin_runner() -> Runner:
    missing = shutil.which("spin") is None or shutil.which("cc") is None
    skip = "spin or a C compiler is not installed" if missing else None
    return _script("spin", ROOT / "tests/model/run_spin.py", limit_s=600, skip=skip)


def torch_suite_runner() -> Runner:
    """Creates the runner of PyTorch's own process-group tests with this backend."""
    return _script("torch_suite", ROOT / "tests/c10d_backend/torch_suite/run.py", limit_s=1200)


def _script(name: str, script: Path, *, limit_s: float, skip: str | None = None) -> Runner:
    return Runner(
        name=name,
        command=[sys.executable, str(script)],
        limit_s=limit_s,
        count=counts_in_text,
        needs=script,
        skip_reason=skip,
    )


def _tool(name: str) -> str:
    """Path of the program next to the running Python; else its bare name, to be found on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def judge(runner: Runner, finished: Finished) -> tuple[Counts, str | None]:
    """Judges a finished runner.

    A failing exit status must be explained by a failed test. Otherwise the runner itself failed, which counts as one
    more failure.

    Returns:
        the counts, and the problem of the runner itself (None: no problem).
    """
    counts = runner.count(finished.output)
    if finished.timed_out:
        problem = f"ran out of its {runner.limit_s:.0f} s"
    elif counts is None:
        problem = f"exit status {finished.exit_status} and no counts"
    elif counts.total == 0:
        problem = "ran no test"
    elif finished.exit_status != 0 and counts.failed == 0:
        problem = f"exit status {finished.exit_status} although no test failed"
    else:
        return counts, None
    return (counts or Counts()) + Counts(failed=1), problem


def run_runner(runner: Runner, results: Path) -> tuple[Counts, str]:
    """Runs one runner; returns its counts and its line of the final table."""
    print(f"\n== {runner.name}: {' '.join(_short(part) for part in runner.command)}", flush=True)
    if runner.needs is not None and not runner.needs.exists():
        return Counts(failed=1), f"FAILED: {_short(str(runner.needs))} is missing"
    if runner.skip_reason is not None:
        return Counts(skipped=1), f"skipped: {runner.skip_reason}"
    finished = run_bounded(
        runner.command, limit_s=runner.limit_s, environment=runner.environment, log=results / f"{runner.name}.log"
    )
    counts, problem = judge(runner, finished)
    counts += runner.left_out
    left_out = f" ({runner.left_out.skipped} need a GPU)" if runner.left_out.skipped else ""
    line = f"{counts}{left_out} in {finished.duration_s:.0f} s"
    return counts, line if problem is None else f"{line}  FAILED: {problem}"


def _short(part: str) -> str:
    """The path relative to the root of the project, if it lies there."""
    return part.removeprefix(f"{ROOT}/")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_tests", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNNER_NAMES, default=RUNNER_NAMES, help="runners to run")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build", help="CMake build folder (default: build)")
    # A test has several ranks (threads or processes). More tests than half the cores would starve each other.
    jobs = max(2, (os.cpu_count() or 1) // 2)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"C++ tests at once (default: {jobs})")
    return parser.parse_args(arguments)


RUNNER_NAMES = ["ctest", "spin", "pytest", "torch_suite"]


def main(arguments: list[str] | None = None) -> int:
    chosen = _parse(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    results = chosen.build_dir.resolve() / "test-results"
    results.mkdir(parents=True, exist_ok=True)
    make = {
        "ctest": lambda: gtest_runner(chosen.build_dir, results, chosen.jobs),
        "spin": spin_runner,
        "pytest": lambda: pytest_runner(results),
        "torch_suite": torch_suite_runner,
    }
    total = Counts()
    table = []
    for name in chosen.only:
        counts, line = run_runner(make[name](), results)
        total += counts
        table.append(f"  {name:<12} {line}")
    print("\n== summary", *table, f"  logs in {_short(str(results))}", sep="\n")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
