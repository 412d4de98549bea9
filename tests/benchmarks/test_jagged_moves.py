# SPDX-License-Identifier: Apache-2.0
"""Real runs of the benchmark of jagged rows, small and short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fbgemm_gpu")

from benchmarks import jagged_moves


def measured(tmp_path: Path, *arguments: str) -> set[str]:
    """Names of the operations whose points the benchmark wrote."""
    path = tmp_path / "points.jsonl"
    sizes = ["--features", "2", "--samples", "16", "--ranks", "4", "--rounds", "1"]
    assert jagged_moves.main([*sizes, *arguments, "--json", str(path), "--out", str(tmp_path)]) == 0
    return {json.loads(line)["params"]["operation"] for line in path.read_text().splitlines()}


def test_exchanges_are_measured_beside_a_copy_and_plotted(tmp_path: Path) -> None:
    assert measured(tmp_path, "--operations", "exchanges", "--dim", "32") == {"dispatch", "combine", "copy"}
    assert (tmp_path / "jagged_moves.png").stat().st_size > 0


def test_operations_without_ranks_have_a_table_and_no_plot(tmp_path: Path) -> None:
    assert measured(tmp_path, "--operations", "unique", "samples") == {"unique", "to_padded", "add_dense", "sum"}
    assert not (tmp_path / "jagged_moves.png").exists()
