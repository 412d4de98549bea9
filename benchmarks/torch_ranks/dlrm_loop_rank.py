# SPDX-License-Identifier: Apache-2.0
"""One rank of the closed loop of ``benchmarks.serving_mlperf``: ``dlrm_inference`` with bounded lag over Headway.

``main()`` takes the fields of ``LoopSettings``. Rank 0 prints the rows that all ranks answered in a second.

Shapes: T tables, F dense inputs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from benchmarks.harness.dlrm_requests import DlrmRequest, IdLaw, RowLaw, draw_requests
from dlrm_examples.dlrm_inference.loop import InferenceRank
from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.placement import place_tables
from dlrm_examples.dlrm_inference.step_inputs import make_step_inputs
from dlrm_examples.dlrm_inference.systems import make_group

_DISTINCT, _WARM_UP = 32, 8  #: Different steps, which repeat after that; steps before the clock starts.


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of one rank.

    Attributes:
        mini_batch: rows that a rank answers in a step.
        max_lag: the bound.
        seconds: approximate duration.
        table_rows: rows of each table.
        num_ids: ids are drawn below it, and taken modulo the rows of their table.
        timeout_s: limit of a wait for another rank.
    """

    rank: int
    ranks: int
    mini_batch: int
    max_lag: int
    seconds: int
    table_rows: list[int]
    num_ids: int
    timeout_s: int
    seed: int = 1


class DrawnRequests:
    """Batches with one id for each row and table; a ``RequestSource``."""

    def __init__(self, config: DlrmConfig, requests: list[DlrmRequest]) -> None:
        self.num_rows = requests[0].num_rows
        self._config = config
        self._requests = requests

    def lookups(self, step: int) -> npt.NDArray[np.int64]:
        """(T,) ones."""
        return np.ones(self._config.num_tables, dtype=np.int64)

    def ids(self, step: int, table: int) -> npt.NDArray[np.int64]:
        """(rows, 1) ids."""
        ids: npt.NDArray[np.int64] = self._requests[step].ids_TN[table][:, None]
        return ids

    def dense(self, step: int, first_row: int, end_row: int) -> npt.NDArray[np.float32]:
        """(end_row - first_row, F) dense inputs."""
        return self._requests[step].dense_NF[first_row:end_row]


def main(fields: Mapping[str, Any]) -> None:
    """Measures the loop once."""
    settings = LoopSettings(**fields)
    config = DlrmConfig(table_rows=tuple(settings.table_rows))
    placement = place_tables(config.table_rows, num_ranks=settings.ranks)
    shard = EmbeddingShard(config, placement.tables_of_rank[settings.rank])
    source = DrawnRequests(
        config,
        draw_requests(
            _DISTINCT,
            rows=RowLaw((settings.ranks * settings.mini_batch,)),
            ids=IdLaw(settings.num_ids),
            num_tables=config.num_tables,
            num_dense=config.num_dense,
            seed=settings.seed,
            table_rows=config.table_rows,
        ),
    )
    inputs = [
        make_step_inputs(source, shard, step, rank=settings.rank, placement=placement, pool_at_receiver=False)
        for step in range(_DISTINCT)
    ]
    slot_bytes = config.row_bytes * max(max(step.receive_rows) for step in inputs)
    group = make_group("headway", max_lag=settings.max_lag, slot_bytes=slot_bytes)
    model = Dlrm(config)

    def run(num_steps: int) -> float:
        repeated = [inputs[step % _DISTINCT] for step in range(num_steps)]
        rank = InferenceRank(model, shard, placement, repeated)
        dist.barrier()
        began = time.perf_counter()
        rank.run_bounded_lag(group, np.zeros(num_steps), max_lag=settings.max_lag)
        elapsed_s = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(elapsed_s, op=dist.ReduceOp.MAX)
        return float(elapsed_s)

    run(_WARM_UP)
    step_s = run(_WARM_UP) / _WARM_UP
    num_steps = max(_WARM_UP, round(settings.seconds / step_s))
    elapsed_s = run(num_steps)
    if settings.rank == 0:
        print(num_steps * settings.mini_batch * settings.ranks / elapsed_s, flush=True)
    dist.barrier()  # Leave together.
    dist.destroy_process_group(group)
