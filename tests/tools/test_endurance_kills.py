# SPDX-License-Identifier: Apache-2.0
"""Leftover files that tools/endurance_kills.sh counts after it kills ranks. A script plays the test program."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Passes once; waits until the test has done its part.
PROGRAM = """#!/bin/sh
touch "$PLAY_FOLDER/started"
while [ ! -e "$PLAY_FOLDER/go" ]; do sleep 0.01; done
[ -z "$PLAY_LEAVES" ] || touch "/dev/shm/$PLAY_LEAVES"
echo "[       OK ] Group/Test"
echo "slowest report: 12 ms"
"""


@pytest.fixture
def name_in_shared_memory() -> Iterator[str]:
    name = f"headway-test-{uuid.uuid4().hex}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


def run_kills(folder: Path, *, leaves: str = "", foreign: str = "") -> subprocess.CompletedProcess[str]:
    """Runs one round, during which another program makes ``foreign`` in /dev/shm.

    A round has 5 kills, 2 short and 2 long stops of ranks (arguments 5 and 2).
    The played ranks leave a file named ``leaves`` there.
    """
    program = folder / "build/tests/libcomm/libcomm_group_test"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    process = subprocess.Popen(
        ["bash", str(ROOT / "tools/endurance_kills.sh"), str(folder / "build"), "5", "2", "shm"],
        env={**os.environ, "PLAY_FOLDER": str(folder), "PLAY_LEAVES": leaves},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (folder / "started").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if foreign:
        Path("/dev/shm", foreign).touch()
    (folder / "go").touch()
    output, errors = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_other_programs_files_in_shared_memory_are_not_counted(tmp_path: Path) -> None:
    foreign = f"foreign-{uuid.uuid4().hex}"
    try:
        finished = run_kills(tmp_path, foreign=foreign)
    finally:
        Path("/dev/shm", foreign).unlink(missing_ok=True)
    assert "0 things left behind" in finished.stdout, finished.stdout + finished.stderr
    assert finished.returncode == 0


def test_a_file_that_the_ranks_left_in_shared_memory_is_counted(tmp_path: Path, name_in_shared_memory: str) -> None:
    finished = run_kills(tmp_path, leaves=name_in_shared_memory)
    assert "1 things left behind" in finished.stdout, finished.stdout + finished.stderr
    assert finished.returncode == 1
