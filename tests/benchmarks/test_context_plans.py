# SPDX-License-Identifier: Apache-2.0
"""The benchmark of context parallelism writes a point for each layout, with figures that fit each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.context_parallel import lengths_of, main
from benchmarks.harness.errors import BenchmarkError


def test_each_layout_has_a_point(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    options = ["--ranks", "2", "8", "--lengths", "tail:3000", "--tokens", "2048", "--heads", "4", "--rounds", "1"]
    assert main([*options, "--targets", "0.2", "--json", str(path), "--out", str(tmp_path)]) == 0
    points = {
        (each["params"]["ranks"], each["system"]): each for each in map(json.loads, path.read_text().splitlines())
    }
    chunks = ["chunks", "chunks, all cut", "all-gather"]
    assert set(points) == {
        *((2, name) for name in ("heads", *chunks)),
        *((8, name) for name in (*chunks, "grid(4, 2)")),
    }
    for ranks in (2, 8):
        sent = [points[ranks, name]["sent_bytes"] for name in chunks]
        assert 0 < sent[0] < sent[1] < sent[2]
    assert points[8, "grid(4, 2)"]["sent_bytes"] < points[8, "chunks"]["sent_bytes"]
    assert all(1 <= each["pairs_excess"] < 1.05 for each in points.values())


def test_lengths_are_those_of_their_law() -> None:
    assert lengths_of("fixed:100", 1000).tolist() == [100] * 10
    tail = lengths_of("tail:300", 5000)
    assert tail.max() <= 300 and 0 <= tail.sum() - 5000 < 300
    with pytest.raises(BenchmarkError, match="--lengths tail:x: there are fixed:N"):
        lengths_of("tail:x", 1000)
