# SPDX-License-Identifier: Apache-2.0
"""Figures of a line of progress: rows and waits of all ranks.

Waits are fractions of the time since the last line. ``idle`` is the mean over ranks of the wait for other ranks, in
exchanges of tables and in reductions. The slowest rank is the one that waits least.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from headway.comm.rank_processes import run_ranks
from headway.training import Progress, Trainer
from headway.training.progress import RankFigures, waits
from training_cases import make_config, make_folder

CPU = torch.device("cpu")


def train_slowly(rank: int, send: Callable[[Any], None], *, folder: Path) -> None:
    """Trains on 3 ranks. Rank 1 sleeps in each of its forward passes."""
    found: list[Progress] = []
    trainer = Trainer(make_config(folder, run={"log_every": 4}), say=lambda line: None, observe=found.append)
    if rank == 1:
        trainer.model.register_forward_pre_hook(lambda module, inputs: time.sleep(0.2))
    trainer.run()
    send((rank, [vars(each) for each in found]))


def test_all_ranks_know_the_slowest_one_and_the_rows_of_all(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    found: list[Any] = []
    run_ranks(
        partial(train_slowly, folder=folder), num_ranks=3, timeout_s=100, backend="headway", on_message=found.append
    )
    by_rank = dict(found)
    assert len(by_rank) == 3 and all(len(lines) == 2 for lines in by_rank.values())
    for name in ("rows", "idle", "exchange_wait", "slowest_rank", "evictions", "losses"):
        assert len({str(lines[-1][name]) for lines in by_rank.values()}) == 1, f"ranks agree on {name}"
    last = by_rank[0][-1]
    assert last["slowest_rank"] == 1 and last["rows"] > 50 and last["evictions"] == 0
    assert 0.3 < last["idle"] < 1 and 0 < last["exchange_wait"] <= last["idle"], "two of three ranks wait"


def figures(exchange_wait: float, reduction_wait: float) -> RankFigures:
    return RankFigures(
        rows=1,
        evictions=0,
        truncated=0,
        input_wait=0.0,
        exchange_wait=exchange_wait,
        reduction_wait=reduction_wait,
        keys_ahead=4,
        collisions=1,
    )


def test_truncated_samples_are_counted(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    table = pq.read_table(folder)
    lengths = [
        len(old) + len(new) for old, new in zip(table["item"].to_pylist(), table["click"].to_pylist(), strict=True)
    ]
    most = sorted(lengths)[len(lengths) // 2]
    config = make_config(
        folder, data={"too_long": "truncate_oldest"}, model={"max_length": most + 1}, run={"epochs": 1, "log_every": 1}
    )
    found: list[Progress] = []
    Trainer(config, say=lambda line: None, observe=found.append).run()
    assert sum(each.truncated for each in found) == sum(each > most for each in lengths) > 0
    assert any("samples truncated" in each.line() for each in found)


def test_waits_are_means_over_ranks() -> None:
    found = waits([figures(0.1, 0.2), figures(0.0, 0.1)], CPU)
    assert (
        found["slowest_rank"] == 1 and math.isclose(found["idle"], 0.2) and math.isclose(found["exchange_wait"], 0.05)
    )
    # NaN: the backend does not measure its waits.
    unknown = waits([figures(math.nan, 0.2), figures(math.nan, 0.4)], CPU)
    assert unknown["exchange_wait"] is None and math.isclose(unknown["idle"], 0.3)
    assert waits([figures(0.1, 0.2)], torch.device("cuda"))["idle"] is None
