# SPDX-License-Identifier: Apache-2.0
"""Benchmarks leave a missing FBGEMM out with a line on stderr. If the user asked for it, that is an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import embedding_layer, jagged_moves

OPERATIONS = ["--operations", "permutation", "samples"]
JAGGED = ["--features", "2", "--samples", "16", "--ranks", "4", "--rounds", "1", *OPERATIONS]
LAYER = ["--tables", "2", "--rows", "100", "--dim", "8", "--batch", "4", "--length", "2", "--rounds", "1"]
PROGRAMS = {"jagged_moves": (jagged_moves, JAGGED), "embedding_layer": (embedding_layer, LAYER)}


@pytest.fixture
def no_fbgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes imports of FBGEMM fail, as if it were not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "fbgemm_gpu"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)


def systems_of(path: Path) -> set[str]:
    return {json.loads(line)["system"] for line in path.read_text().splitlines()}


@pytest.mark.usefixtures("no_fbgemm")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_others_are_measured_without_fbgemm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    module, arguments = PROGRAMS[program]
    json_path = tmp_path / "points.jsonl"
    assert module.main([*arguments, "--json", str(json_path), "--out", str(tmp_path)]) == 0
    assert "headway" in systems_of(json_path) and "fbgemm" not in systems_of(json_path)
    assert "fbgemm is left out: FBGEMM is not installed" in capsys.readouterr().err


@pytest.mark.usefixtures("no_fbgemm")
@pytest.mark.parametrize("program", PROGRAMS)
def test_fbgemm_that_is_asked_for_and_missing_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    module, arguments = PROGRAMS[program]
    assert module.main([*arguments, "--against", "fbgemm", "--out", str(tmp_path)]) == 1
    assert "FBGEMM is not installed" in capsys.readouterr().err


def test_against_none_leaves_fbgemm_out_without_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_path = tmp_path / "points.jsonl"
    assert jagged_moves.main([*JAGGED, "--against", "none", "--json", str(json_path), "--out", str(tmp_path)]) == 0
    assert systems_of(json_path) == {"headway", "eager"}
    assert "left out" not in capsys.readouterr().err


class KernelsOfNoDevice:
    """FBGEMM's operators as a CPU package registers them for CUDA."""

    def __getattr__(self, name: str) -> object:
        def run(*_: object) -> object:
            raise NotImplementedError(f"Could not run 'fbgemm::{name}' with arguments from the 'CUDA' backend.\nMore")

        return run


def test_fbgemm_without_kernels_for_the_device_is_left_out_of_these_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jagged_moves, "find_fbgemm", lambda options: object())
    monkeypatch.setattr(torch.ops, "fbgemm", KernelsOfNoDevice(), raising=False)
    json_path = tmp_path / "points.jsonl"
    assert jagged_moves.main([*JAGGED, "--json", str(json_path), "--out", str(tmp_path)]) == 0
    assert systems_of(json_path) == {"headway", "eager"}
    assert "fbgemm is left out of permute: Could not run 'fbgemm::permute_2D_sparse_data'" in capsys.readouterr().err
    assert jagged_moves.main([*JAGGED, "--against", "fbgemm", "--out", str(tmp_path)]) == 1
    assert "fbgemm has no permute for cpu" in capsys.readouterr().err
