"""Runs the tests that need an RDMA device in the RDMA guest; the last line is N passed, N failed, N skipped."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from bounded_process import end_on_sigterm, run_bounded  # noqa: E402 - in tools/, which is not a package
from test_counts import Counts, counts_in_text  # noqa: E402

SKIPPED_STATUS = 77
_RESULT = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] .+ \(\d+ ms\)$", re.MULTILINE)


def count_results(output: str) -> Counts:
    """Counts the result lines that GoogleTest prints at the end of each test."""
    results = _RESULT.findall(output)
    return Counts(passed=results.count("OK"), failed=results.count("FAILED"), skipped=results.count("SKIPPED"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="guest_suite", description=__doc__)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build", help="what tools/build.sh built")
    parser.add_argument("--limit", type=float, default=480, metavar="S", help="end after this time (default: 480)")
    parser.add_argument("--here", action="store_true", help="this machine has an RDMA device: run without the guest")
    parser.add_argument("--torch", action="store_true", help="the tests of the process group and of DLRM instead")
    chosen = parser.parse_args(arguments)
    if chosen.here and chosen.torch:
        parser.error("--torch is for the guest; elsewhere set HEADWAY_ENGINE=verbs and run pytest")
    end_on_sigterm()
    command = ["tools/rdma_guest/guest_tests.sh", str(chosen.build_dir)]
    if chosen.torch:
        command = ["tools/rdma_guest/torch_tests.sh", sys.executable]
    if not chosen.here:
        machine = ["--cpu", "max"] if chosen.torch else []  # torch needs AVX.
        command = ["tools/rdma_guest/run.sh", "--limit", f"{chosen.limit:.0f}", *machine, *command]
    os.chdir(ROOT)
    finished = run_bounded(command, limit_s=chosen.limit + 30, log=ROOT / "out/rdma_guest.log")
    if finished.exit_status == SKIPPED_STATUS:
        print(Counts(skipped=1))
        return 0
    counts = (counts_in_text(finished.output) or Counts()) if chosen.torch else count_results(finished.output)
    if (finished.exit_status != 0 and counts.failed == 0) or counts.passed == 0:
        print(f"the tests did not come to their end: exit status {finished.exit_status}")
        counts += Counts(failed=1)
    print(counts, flush=True)
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
