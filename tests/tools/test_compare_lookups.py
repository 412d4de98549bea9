# SPDX-License-Identifier: Apache-2.0
"""tools/compare_lookups.py tells of histories whose lookups differ between two builds.

A history is a random sequence of training and evaluation steps with embedding tables.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headway
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compare_lookups.py"
OURS = Path(headway.__file__).resolve().parents[1]


def compare(before: Path, after: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    arguments = [str(before), str(after), "--histories", "3", "--ranks", str(ranks)]
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_build_has_the_lookups_of_itself(ranks: int) -> None:
    result = compare(OURS, OURS, ranks)
    assert (result.returncode, f"{ranks} ranks: 3 of 3 histories are the same" in result.stdout) == (0, True), result


def test_another_update_is_found(tmp_path: Path) -> None:
    """The copy of the package halves each learning rate, so all histories that train differ."""
    package = tmp_path / "headway"
    package.mkdir()
    for each in (OURS / "headway").iterdir():
        if each.name != "embedding":
            (package / each.name).symlink_to(each)
    (package / "embedding").mkdir()
    for each in (OURS / "headway" / "embedding").iterdir():
        (package / "embedding" / each.name).symlink_to(each)
    changed = package / "embedding" / "collection.py"
    text = changed.read_text()
    assert "rate * by_name.get(each.name, 1.0)" in text
    changed.unlink()
    changed.write_text(text.replace("rate * by_name.get(each.name, 1.0)", "rate * 0.5"))
    result = compare(OURS, tmp_path, 1)
    assert (result.returncode, "history 0 differs: seed 0, 1 ranks" in result.stdout) == (1, True), result
