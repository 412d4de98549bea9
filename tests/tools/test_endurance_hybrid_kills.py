# SPDX-License-Identifier: Apache-2.0
"""A job of hybrid training survives the loss of each role once. The tool kills them as often as wanted."""

from __future__ import annotations

import random
from pathlib import Path

from tools.endurance_hybrid_kills import ROLES, run_kills


def test_a_job_resumes_after_the_loss_of_each_role(tmp_path: Path) -> None:
    assert run_kills(ROLES, random.Random(1), tmp_path, num_steps=800)
