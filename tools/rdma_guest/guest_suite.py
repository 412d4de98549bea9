# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that need an RDMA device in the RDMA guest; the last line is N passed, N failed, N skipped.

The guest is a QEMU machine with a software RDMA device (Soft-RoCE), for hosts without RDMA hardware: README.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from run_ctest import report  # noqa: E402 - in tools/, which is not a package

SKIPPED_STATUS = 77  #: Exit status of run.sh if this host cannot run the guest.
#: Result lines of GoogleTest, and of pytest with -v.
_RESULT = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (.+) \(\d+ ms\)$|^(tests/.+) (PASSED|FAILED|ERROR|SKIPPED)\b", re.M)


def read_results(output: str, status: int) -> list[Element]:
    """Test cases that GoogleTest or pytest printed, and one more if the run is not explained by them.

    That case is failed: the status is a failure without a failed test, or no test passed. If there is no test and the
    status is SKIPPED_STATUS, it is skipped.
    """
    cases = []
    for found in _RESULT.finditer(output):
        word, name = (found[1], found[2]) if found[1] else (found[4], found[3])
        case = Element("testcase", name=name)
        if word not in ("OK", "PASSED"):
            SubElement(case, "skipped" if word == "SKIPPED" else "failure", message="see out/rdma_guest.log")
        cases.append(case)
    is_explained = status == 0 or any(case.find("failure") is not None for case in cases)
    if not is_explained or all(len(case) for case in cases):
        case = Element("testcase", name="guest")
        is_skipped = status == SKIPPED_STATUS and not cases
        problem = SubElement(case, "skipped" if is_skipped else "failure")
        problem.text = f"the tests did not come to their end: exit status {status}\n{output[-2000:]}"
        cases.append(case)
    return cases


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="guest_suite", description=__doc__)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build", help="what tools/build.sh built")
    parser.add_argument("--limit", type=int, default=480, metavar="S", help="end after this time (default: 480)")
    parser.add_argument("--here", action="store_true", help="this machine has an RDMA device: run without the guest")
    parser.add_argument("--torch", action="store_true", help="the tests of the process group and of DLRM instead")
    parser.add_argument("--junit", type=Path, default=ROOT / "out/rdma_guest.xml", metavar="FILE", help="gets results")
    chosen = parser.parse_args(arguments)
    if chosen.here and chosen.torch:
        parser.error("--torch is for the guest; elsewhere set HEADWAY_TRANSPORT=verbs and run pytest")
    command = ["tools/rdma_guest/guest_tests.sh", str(chosen.build_dir)]
    if chosen.torch:
        command = ["tools/rdma_guest/torch_tests.sh", sys.executable]
    if chosen.here:
        command = ["timeout", str(chosen.limit), *command]
    else:
        machine = ["--cpu", "max"] if chosen.torch else []  # torch needs AVX.
        command = ["tools/rdma_guest/run.sh", "--limit", str(chosen.limit), *machine, *command]
    log = ROOT / "out/rdma_guest.log"
    log.parent.mkdir(exist_ok=True)
    shown = ["bash", "-o", "pipefail", "-c", '"$@" 2>&1 | tee "$0"', str(log), *command]
    status = subprocess.run(shown, cwd=ROOT).returncode
    return report({"guest": read_results(log.read_text(errors="replace"), status)}, chosen.junit)


if __name__ == "__main__":
    sys.exit(main())
