# SPDX-License-Identifier: Apache-2.0
"""A process that keeps freed memory does so from the call on, and leaves what the user has set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from headway.cli.process_memory import keep_freed_memory

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "keep":
    keep_freed_memory()
before = resident_mib()
block = bytearray(b"x") * (20 << 20)
del block
print(resident_mib() - before, os.environ.get("MIMALLOC_PURGE_DELAY"))
"""


def run(mode: str, **variables: str) -> tuple[float, str]:
    names = ("MIMALLOC_PURGE_DELAY", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, mode], env=environment | variables, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    kept, delay = done.stdout.split()
    return float(kept), delay


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_stays_in_the_process() -> None:
    assert run("keep")[0] > 15
    assert run("leave")[0] < 5


def test_pyarrow_is_told_too_unless_the_user_did() -> None:
    assert run("keep")[1] == "-1"
    assert run("keep", MIMALLOC_PURGE_DELAY="7")[1] == "7"
    assert run("leave")[1] == "None"


def test_thresholds_of_the_user_count() -> None:
    assert run("keep", MALLOC_MMAP_THRESHOLD_="65536")[0] < 5
