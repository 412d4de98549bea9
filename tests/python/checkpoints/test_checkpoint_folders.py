# SPDX-License-Identifier: Apache-2.0
"""Folders of checkpoints: trainings that go back to an older one keep what they save, and resume from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.checkpoints import CheckpointFolders, StepManifest


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_save_is_the_newest_checkpoint_though_others_have_later_steps(tmp_path: Path, keep: int) -> None:
    folders = CheckpointFolders(tmp_path, keep=keep, group=None)
    for step in (160, 180, 189, 175):
        path = folders.save(StepManifest(step=step), {}, [])
        assert path.is_dir() and folders.latest() == path
    aside = sorted(path.name for path in (tmp_path / "earlier_1").iterdir())
    assert aside == ["step_00000180", "step_00000189"][-keep:]  # Others were removed before.
    (tmp_path / "step_00000178").mkdir()  # An interrupted save left it.
    assert [each.name for each in folders.later_than(175)] == ["step_00000178"]
