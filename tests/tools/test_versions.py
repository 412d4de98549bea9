# SPDX-License-Identifier: Apache-2.0
"""tools/versions.sh: its table, and its exit status when a build or a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The played build fails with torch 2.12, and PyTorch's suite with 2.15.
SETUP = f"""#!/bin/sh
[ "${{1:-}}" = --print-versions ] && exec tools/real_setup.sh "$@"
mkdir -p .venv/bin && ln -sf {sys.executable} .venv/bin/python
"""
BUILD = """#!/bin/sh
[ "$TORCH" != 2.12 ] || { echo "error: a header has changed"; exit 1; }
mkdir -p build
echo "build a.cu.o: CUDA_COMPILER__kernels" >build/build.ninja
"""
RUN_CTEST = """
import os, sys
fails = os.environ["TORCH"] == "2.15" and "torch_suite" in sys.argv[-1]
if fails:
    print("== failed", "-- test_all_to_all", "", sep="\\n")
print("5 passed, 1 failed, 2 skipped" if fails else "7 passed, 0 failed, 3 skipped")
sys.exit(fails)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with the real scripts around a set-up, a build and tests that do nothing."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("versions.sh", "in_torch.sh", "torch_versions.txt"):
        shutil.copy2(ROOT / "tools" / name, tools / name)
    shutil.copy2(ROOT / "tools/setup.sh", tools / "real_setup.sh")
    for name, text in (("setup.sh", SETUP), ("build.sh", BUILD), ("run_ctest.py", RUN_CTEST)):
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    (tmp_path / ".gitignore").write_text("/out/\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, timeout=60)
    return tmp_path


def run_versions(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH"}
    return subprocess.run(
        ["tools/versions.sh", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_version_that_passes_is_a_row_of_counts(checkout: Path) -> None:
    """Columns: torch, TorchRec, FBGEMM, build, and passed / failed / skipped of three suites.

    The suites are the process group's, PyTorch's own, and the other Python tests.
    """
    finished = run_versions(checkout, "2.14")
    assert finished.returncode == 0, finished.stderr
    row = " ".join(finished.stdout.splitlines()[-1].split())
    assert row == "2.14.0 1.9.2 1.9.0 CUDA 7 / 0 / 3 7 / 0 / 3 7 / 0 / 3"
    assert (checkout / "out/torch-2.14").exists()


def test_failures_are_shown_and_do_not_stop_the_other_versions(checkout: Path) -> None:
    finished = run_versions(checkout, "--remove", "2.12", "2.15", "2.11")
    assert finished.returncode == 1
    assert "error: a header has changed" in finished.stdout
    assert "-- test_all_to_all" in finished.stdout
    rows = [" ".join(line.split()) for line in finished.stdout.splitlines()[-3:]]
    assert rows == [
        "2.12.0 1.7.0 1.7.0 no - - -",
        "2.15.0 - - CUDA 7 / 0 / 3 5 / 1 / 2 7 / 0 / 3",
        "2.11.0 1.6.1 1.6.0 CUDA 7 / 0 / 3 7 / 0 / 3 7 / 0 / 3",
    ]
    assert not list((checkout / "out").glob("torch-*"))


def test_all_versions_of_the_table_are_the_default(checkout: Path) -> None:
    finished = run_versions(checkout)
    table = (ROOT / "tools/torch_versions.txt").read_text(encoding="utf-8").splitlines()
    versions = [line.split()[0] for line in table if line and not line.startswith("#")]
    assert [line.split()[0] for line in finished.stdout.splitlines()[-len(versions) :]] == versions


def test_an_unknown_version_is_refused_before_anything_is_built(checkout: Path) -> None:
    finished = run_versions(checkout, "2.15", "2.9")
    assert finished.returncode == 1
    assert "there is no torch 2.9" in finished.stderr
    assert not (checkout / "out").exists()
