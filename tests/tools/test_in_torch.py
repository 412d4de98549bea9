# SPDX-License-Identifier: Apache-2.0
"""A copy of the checkout for another torch: which files it gets, and that make runs its targets there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *command: str, torch: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TORCH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL") and not name.startswith("GIT_")
    }
    if torch is not None:
        environment["TORCH"] = torch
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with the scripts; its ``make build`` tells the folder and the versions instead of building."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "tools/in_torch.sh", "tools/setup.sh", "tools/torch_versions.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    makefile = (tmp_path / "Makefile").read_text(encoding="utf-8")
    (tmp_path / "Makefile").write_text(
        makefile.replace("@tools/setup.sh\n", "@pwd && tools/setup.sh --print-versions\n").replace(
            "@tools/build.sh", "@echo built with"
        ),
        encoding="utf-8",
    )
    (tmp_path / ".gitignore").write_text("/out/\n/ignored\n", encoding="utf-8")
    (tmp_path / "ignored").write_text("ignored", encoding="utf-8")
    assert run(tmp_path, "git", "init", "-q").returncode == 0
    assert run(tmp_path, "git", "add", ".").returncode == 0
    return tmp_path


def files_of(folder: Path) -> set[str]:
    """Lists the files of a folder, but for the list in which tools/in_torch.sh keeps the names that it copied."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {".copied_files"}


def test_the_copy_follows_the_files_of_the_checkout_and_keeps_its_own(checkout: Path) -> None:
    copy = checkout / "out/torch-2.15"
    new = checkout / "a folder/new file.txt"
    new.parent.mkdir()
    new.write_text("one", encoding="utf-8")
    os.utime(new, (1_000_000, 1_000_000))
    assert run(checkout, "tools/in_torch.sh", "2.15", "true").returncode == 0
    expected = {"Makefile", ".gitignore", "a folder/new file.txt"}
    expected |= {f"tools/{name}" for name in ("in_torch.sh", "setup.sh", "torch_versions.txt")}
    assert files_of(copy) == expected
    assert (copy / "a folder/new file.txt").stat().st_mtime == 1_000_000

    (copy / "build").mkdir()
    (copy / "build/object.o").touch()
    new.unlink()
    (checkout / "tools/setup.sh").write_text("#!/bin/sh\necho 2.15.0 - -\n", encoding="utf-8")
    finished = run(checkout, "tools/in_torch.sh", "2.15", "sh", "-c", "pwd; echo $TORCH; cat tools/setup.sh")
    assert finished.stdout == f"{copy}\n2.15\n#!/bin/sh\necho 2.15.0 - -\n", finished.stderr
    assert files_of(copy) == expected - {"a folder/new file.txt"} | {"build/object.o"}


@pytest.mark.parametrize("torch", ["2.12", "2.12.0"])
def test_make_runs_a_target_in_the_copy_of_the_wanted_torch(checkout: Path, torch: str) -> None:
    finished = run(checkout, "make", "build", f"TORCH={torch}", "JOBS=3")
    assert finished.returncode == 0, finished.stderr
    folder, versions, built = finished.stdout.splitlines()
    assert folder == str(checkout / "out/torch-2.12")
    assert versions.startswith("2.12.0 ")
    assert built == "built with 3"


def test_make_without_torch_stays_in_the_checkout(checkout: Path) -> None:
    finished = run(checkout, "make", "build")
    assert finished.stdout.splitlines()[0] == str(checkout)
    assert not (checkout / "out").exists()


def test_an_unknown_torch_ends_before_anything_is_copied(checkout: Path) -> None:
    finished = run(checkout, "tools/in_torch.sh", "2.9", "true")
    assert finished.returncode == 1
    assert "there is no torch 2.9 in tools/torch_versions.txt" in finished.stderr
    assert not (checkout / "out").exists()


def test_the_workflow_covers_each_version_of_the_table() -> None:
    table = (ROOT / "tools/torch_versions.txt").read_text(encoding="utf-8")
    releases = re.findall(r"^(\d+\.\d+)\.\d+ ", table, re.MULTILINE)
    workflow = (ROOT / ".github/workflows/versions.yml").read_text(encoding="utf-8")
    matrix = re.search(r"torch: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r'"(.*?)"', matrix[1]) == releases
