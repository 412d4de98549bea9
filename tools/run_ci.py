"""Runs all checks of CI: the tests, lint, RDMA in a guest, and the C++ tests under sanitizers and for aarch64.

Tests wait more than they compute, so clang-tidy, which only computes, runs at low priority beside them.

Each stage prints its time. Failures are repeated at the end. The last line sums up the tests of all stages, a lint
stage counting as one: N passed, N failed, N skipped. The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from bounded_process import BoundedProcess, Finished, end_on_sigterm, run_bounded
from test_counts import Counts, counts_in_text, failures_in_text

ROOT = Path(__file__).resolve().parents[1]
SKIPPED_STATUS = 77  #: exit status of a stage whose tool is not installed
_LAST_LINES = 20  #: number of last output lines shown if a stage fails without naming a test


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One check.

    Attributes:
        commands: run one after the other; the stage stops at the first that fails.
        limit_s: time limit in seconds for all commands together.
        has_counts: the last command ends in a summary line; otherwise the stage counts as one test.
        is_patient: its single command runs at low priority beside the stages after it.
        skip_reason: reason why this machine cannot run the stage; None: it can.
    """

    name: str
    group: str
    commands: list[list[str]]
    limit_s: float
    has_counts: bool = False
    is_patient: bool = False
    skip_reason: str | None = None


def _program(name: str) -> str:
    """Path of the program in .venv; its bare name if it is not installed there."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def lint_stages() -> list[Stage]:
    python = sys.executable
    no_tidy = None if shutil.which("clang-tidy") else "clang-tidy is not installed"
    return [
        Stage(name="clang-format", group="lint", commands=[[python, "tools/lint_cpp.py", "format"]], limit_s=120),
        Stage(
            name="clang-tidy",
            group="lint",
            commands=[["nice", "-n", "19", python, "tools/lint_cpp.py", "tidy"]],
            limit_s=3600,
            is_patient=True,
            skip_reason=no_tidy,
        ),
        Stage(name="ruff", group="lint", commands=[[_program("ruff"), "check", "."]], limit_s=60),
        Stage(name="mypy", group="lint", commands=[[_program("mypy")]], limit_s=300),
        Stage(name="layers", group="lint", commands=[[python, "tools/check_layers.py"]], limit_s=60),
        Stage(name="comments", group="lint", commands=[[python, "tools/lint_comments.py"]], limit_s=60),
    ]


def cpp_test_stage(name: str, configure: list[str], skip_reason: str | None = None) -> Stage:
    """Creates a stage that builds the parts without torch and their tests in a separate folder, and runs the tests.

    With a sanitizer it also builds a test program of the torch backend. These tests are limited by computing, not by
    waiting, so as many run at once as there are cores.
    """
    build_dir = f"build-{name}"
    return Stage(
        name=name,
        group=name,
        commands=[
            [_program("cmake"), "-S", ".", "-B", build_dir, "-G", "Ninja", "-DHEADWAY_BUILD_TORCH=OFF",
             "-DHEADWAY_BUILD_BENCHMARKS=OFF", "-DHEADWAY_STRESS_HISTORIES=1000", "--log-level=WARNING",
             # Reports only need line numbers (-g1). Full debug information takes a third of the compile time.
             "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O2 -g1", *configure],
            [_program("ninja"), "-C", build_dir, "--quiet"],
            [sys.executable, "tools/run_tests.py", "--only", "ctest", "--build-dir", build_dir,
             "--jobs", str(os.cpu_count() or 1)],
        ],
        limit_s=1800,
        has_counts=True,
        skip_reason=skip_reason,
    )  # fmt: skip


def all_stages() -> list[Stage]:
    missing = [tool for tool in ("aarch64-linux-gnu-g++", "qemu-aarch64") if shutil.which(tool) is None]
    no_cross = f"{' and '.join(missing)} not installed" if missing else None
    with_backend = ["-DHEADWAY_SANITIZE_TORCH=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    return [
        Stage(name="build", group="build", commands=[["make", "build"]], limit_s=2400),
        *lint_stages(),
        Stage(name="test", group="test", commands=[["make", "test"]], limit_s=2400, has_counts=True),
        Stage(
            name="rdma",
            group="rdma",
            commands=[[sys.executable, "tools/rdma_guest/guest_suite.py"]],
            limit_s=600,
            has_counts=True,
        ),
        Stage(name="wheel", group="wheel", commands=[[sys.executable, "tools/check_wheel.py"]], limit_s=1200),
        cpp_test_stage("asan", ["-DHEADWAY_SANITIZE=address", *with_backend]),
        cpp_test_stage("tsan", ["-DHEADWAY_SANITIZE=thread", *with_backend]),
        cpp_test_stage("aarch64", ["-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake"], no_cross),
    ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a stage."""

    counts: Counts
    line: str  #: line of the stage in the final table
    failures: list[str]  #: output of each failed test


def run_stage(stage: Stage) -> Outcome:
    print(f"\n==== {stage.name}", flush=True)
    if stage.skip_reason is not None:
        return Outcome(counts=Counts(skipped=1), line=f"skipped: {stage.skip_reason}", failures=[])
    left_s, total_s = stage.limit_s, 0.0
    for command in stage.commands:
        finished = run_bounded(command, limit_s=left_s, environment=_ENVIRONMENT, log=_log_of(stage))
        left_s -= finished.duration_s
        total_s += finished.duration_s
        if finished.exit_status != 0:
            break
    return outcome_of(stage, finished, total_s)


def start_stage(stage: Stage) -> BoundedProcess:
    """Starts a patient stage in the background. ``finish_stage()`` prints its output."""
    (command,) = stage.commands
    return BoundedProcess(command, environment=_ENVIRONMENT, is_shown=False)


def finish_stage(stage: Stage, process: BoundedProcess) -> Outcome:
    print(f"\n==== {stage.name}, which ran beside the others", flush=True)
    finished = process.finish(limit_s=stage.limit_s, log=_log_of(stage))
    print(finished.output, end="", flush=True)
    return outcome_of(stage, finished, finished.duration_s)


def outcome_of(stage: Stage, finished: Finished, total_s: float) -> Outcome:
    counts = judge(stage, finished)
    problem = f"  FAILED: {_reason(stage, finished)}" if counts.failed else ""
    failures = failures_of(finished) if counts.failed else []
    return Outcome(counts=counts, line=f"{counts} in {total_s:.0f} s{problem}", failures=failures)


def failures_of(finished: Finished) -> list[str]:
    """Extracts the failed tests from the output of a failed command; without any, returns its last lines."""
    return failures_in_text(finished.output) or ["\n".join(finished.output.splitlines()[-_LAST_LINES:])]


def judge(stage: Stage, finished: Finished) -> Counts:
    """Counts of a stage whose last command is ``finished``. A failure without a failed test counts as one."""
    if finished.exit_status == SKIPPED_STATUS and not stage.has_counts:
        return Counts(skipped=1)
    counts = counts_in_text(finished.output) if stage.has_counts else None
    if finished.exit_status == 0:
        return counts or (Counts(failed=1) if stage.has_counts else Counts(passed=1))
    if counts is None or counts.failed == 0:
        return (counts or Counts()) + Counts(failed=1)
    return counts


def _log_of(stage: Stage) -> Path:
    return ROOT / f"out/ci/{stage.name}.log"


def _reason(stage: Stage, finished: Finished) -> str:
    if finished.timed_out:
        return f"ran out of its {stage.limit_s:.0f} s"
    return f"exit status {finished.exit_status}, output above and in out/ci/{stage.name}.log"


_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "CLICOLOR_FORCE": "0",
}


def main(arguments: list[str] | None = None) -> int:
    stages = all_stages()
    groups = list(dict.fromkeys(stage.group for stage in stages))
    parser = argparse.ArgumentParser(prog="run_ci", description=__doc__)
    names = groups + [stage.name for stage in stages if stage.group == "lint"]
    parser.add_argument("--only", nargs="+", choices=names, default=groups, metavar="STAGE", help=", ".join(names))
    chosen = parser.parse_args(arguments).only
    end_on_sigterm()
    os.chdir(ROOT)
    outcomes: list[tuple[Stage, Outcome]] = []

    def keep(stage: Stage, outcome: Outcome) -> None:
        print(f"==== {stage.name}: {outcome.line}", flush=True)
        outcomes.append((stage, outcome))

    with contextlib.ExitStack() as stack:
        patient = []
        for stage in stages:
            if stage.group not in chosen and stage.name not in chosen:
                continue
            if stage.is_patient and stage.skip_reason is None:
                patient.append((stage, stack.enter_context(start_stage(stage))))
            else:
                keep(stage, run_stage(stage))
        for stage, process in patient:
            keep(stage, finish_stage(stage, process))
    return report(outcomes)


def report(outcomes: list[tuple[Stage, Outcome]]) -> int:
    """Prints failures, a table of the stages and the total; returns the exit status."""
    total = sum((outcome.counts for _, outcome in outcomes), Counts())
    table = [f"  {stage.name:<14} {outcome.line}" for stage, outcome in outcomes]
    failures = [f"-- {stage.name}\n{text}" for stage, outcome in outcomes for text in outcome.failures]
    if failures:
        print("\n==== failed", *failures, sep="\n")
    print("\n==== stages", *table, sep="\n")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
