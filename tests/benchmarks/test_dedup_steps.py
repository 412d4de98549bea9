# SPDX-License-Identifier: Apache-2.0
"""The benchmark of deduplication settings measures each of them, here on the CPU.

``DEDUPS``: no deduplication, before the exchange of keys, after it at the owner of a row, or both.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.dedup_steps import main
from benchmarks.dedup_traffic import DEDUPS

SMALL = ["--keys", "512", "--length", "16", "--ids", "1000", "--rounds", "1", "--steps", "1"]


def test_every_way_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    points = tmp_path / "points.jsonl"
    assert main(["--device", "cpu", "--dim", "8", *SMALL, "--json", str(points), "--out", str(tmp_path)]) == 0
    measured = {point["system"]: point for point in map(json.loads, points.read_text().splitlines())}
    assert set(measured) == set(DEDUPS)
    assert measured["none"]["ratio"] == 1
    assert all(point["params"]["ranks"] == 2 and point["median_s"] > 0 for point in measured.values())
    assert "both" in capfd.readouterr().out


def test_more_ranks_than_gpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "99", *SMALL]) == 1
    assert "99 ranks need a GPU each" in capsys.readouterr().err
