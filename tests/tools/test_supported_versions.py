# SPDX-License-Identifier: Apache-2.0
"""The supported versions are the same for Python, for pip and for the environments of developers."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import headway_build
import pytest
from headway import _supported_versions as supported

ROOT = Path(__file__).resolve().parents[2]


def test_pip_and_the_package_support_the_same_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert supported.TORCH_REQUIREMENT in project["dependencies"]
    assert headway_build.supported_range().requirement == supported.TORCH_REQUIREMENT


@pytest.mark.parametrize("version", ["2.11.0", "2.15.7", "2.14.0+cu130"])
def test_versions_in_the_range_pass(version: str) -> None:
    supported.check_torch(version)


@pytest.mark.parametrize("version", ["2.10.2", "2.16.0", "2.1.0", "3.11.0", "unknown"])
def test_versions_outside_the_range_are_named_with_what_is_supported(version: str) -> None:
    with pytest.raises(ImportError, match=f"torch {version} is installed, and headway supports torch 2.11 to 2.15"):
        supported.check_torch(version)


def read_table() -> list[list[str]]:
    """Reads the versions of torch, TorchRec and FBGEMM of each environment; "-": there is none."""
    text = (ROOT / "tools/torch_versions.txt").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_table_of_environments_has_each_supported_torch_with_its_torchrec() -> None:
    table = read_table()
    releases = [supported.release_of(torch) for torch, _, _ in table]
    major = supported.OLDEST_TORCH[0]
    assert releases == [(major, minor) for minor in range(supported.OLDEST_TORCH[1], supported.NEWEST_TORCH[1] + 1)]
    for (_, *packages), release in zip(table, releases, strict=True):
        expected = supported.TORCHREC_BY_TORCH.get(release)
        assert [None if each == "-" else supported.release_of(each) for each in packages] == [expected, expected]


def print_versions(torch: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH"}
    if torch is not None:
        environment["TORCH"] = torch
    command = [str(ROOT / "tools/setup.sh"), "--print-versions"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_set_up_installs_the_row_that_torch_names_or_the_newest_with_torchrec() -> None:
    table = read_table()
    for row in table:
        for wanted in (row[0], row[0].rpartition(".")[0]):
            assert print_versions(wanted).stdout.split() == row
    newest = [row for row in table if row[1] != "-"][-1]
    assert print_versions(None).stdout.split() == newest


@pytest.mark.parametrize("torch", ["2.10", "2", "2.1", "newest"])
def test_set_up_refuses_a_torch_that_the_table_lacks_in_one_line(torch: str) -> None:
    finished = print_versions(torch)
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert f"no torch {torch} in tools/torch_versions.txt" in line
    assert all(row[0] in line for row in read_table())
