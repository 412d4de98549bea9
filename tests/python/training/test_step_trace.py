# SPDX-License-Identifier: Apache-2.0
"""One trace of the stages, operators and exchanges of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headway.comm.rank_processes import run_ranks
from headway.training import ConfigError, Trainer
from training_cases import make_config, make_folder

NUM_RANKS = 2


def train_traced(rank: int, send: Callable[[Any], None], *, folder: Path, out: Path) -> None:
    config = make_config(folder, run={"max_steps": 5})
    Trainer(config, out=out, say=lambda line: None, trace=range(2, 4)).run()


def test_the_file_has_stages_and_exchanges_of_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_ranks(
        partial(train_traced, folder=make_folder(tmp_path / "log"), out=out),
        num_ranks=NUM_RANKS,
        timeout_s=100,
        backend="headway",
        on_message=print,
    )
    rows = json.loads((out / "trace.json").read_text())["traceEvents"]
    for rank in range(NUM_RANKS):
        of_rank = [row for row in rows if row["pid"] // 1_000 == rank]
        for stage in ("forward", "backward", "update", "prepare the next step"):
            assert sum(row.get("name") == stage for row in of_rank) == 2, f"{stage} in each of two steps"
        names = {row["args"]["name"] for row in of_rank if row.get("ph") == "M" and row["name"] == "process_name"}
        assert names and all(name.startswith(f"rank {rank}: ") for name in names)
        stages = [row for row in of_rank if row.get("name") in ("forward", "update")]
        begin, end = min(row["ts"] for row in stages), max(row["ts"] + row["dur"] for row in stages)
        exchanges = [row for row in of_rank if row.get("cat") == "headway" and row["ph"] == "b"]
        assert exchanges and all(begin - 1e6 < row["ts"] < end + 1e6 for row in exchanges), "both have one clock"
    assert min(row["ts"] for row in rows) == 0
    ids = [
        row["id"] for row in rows if row.get("cat") == "headway" and row["ph"] == "b" and "posted" not in row["name"]
    ]
    assert len(ids) == len(set(ids))


def test_a_trace_needs_a_folder_and_may_be_cut_short(tmp_path: Path) -> None:
    config = make_config(make_folder(tmp_path / "log"), run={"max_steps": 2})
    with pytest.raises(ConfigError, match="a trace needs a folder"):
        Trainer(config, trace=range(1, 9))
    lines: list[str] = []
    Trainer(config, out=tmp_path / "out", say=lines.append, trace=range(1, 9)).run()
    assert (tmp_path / "out" / "trace.json").exists(), "the training ended within the traced steps"
    assert any("trace.json" in line for line in lines)
    Trainer(config, out=tmp_path / "none", say=lines.append, trace=range(7, 9)).run()
    assert not (tmp_path / "none" / "trace.json").exists()
    assert "no step of the trace 7:9 was trained: steps count from 0, and 2 are made" in lines
