# SPDX-License-Identifier: Apache-2.0
"""Oracle of the predictions: one process holds all tables and answers the same mini-batches without any exchange."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard, pool_rows
from dlrm_examples.dlrm_inference.placement import place_tables
from dlrm_examples.dlrm_inference.request_source import Ids, RequestSource
from dlrm_examples.dlrm_inference.step_inputs import make_step_inputs


@torch.no_grad()
def predict_in_one_process(
    config: DlrmConfig, source: RequestSource, *, num_steps: int, num_ranks: int, pool_at_receiver: bool = False
) -> list[list[torch.Tensor]]:
    """Predicts for all ranks and steps; bit-identical to the predictions of ``num_ranks`` processes.

    Args:
        config: sizes of the model.
        source: batches of the rows of all ranks.
        num_steps: number of batches.
        num_ranks: number of ranks among which each batch is divided.
        pool_at_receiver: sum the rows of a bag after the exchange, as the measured ranks do under such a setting.
    Returns:
        one (B,) tensor for each rank and step.
    """
    placement = place_tables(config.table_rows, num_ranks=1)
    model, shard = Dlrm(config), EmbeddingShard(config, range(config.num_tables))
    predictions: list[list[torch.Tensor]] = [[] for _ in range(num_ranks)]
    for step in range(num_steps):
        for rank in range(num_ranks):
            mini_batch = _Rows(source, rank, num_ranks)
            inputs = make_step_inputs(
                mini_batch, shard, step, rank=0, placement=placement, pool_at_receiver=pool_at_receiver
            )
            rows = shard.lookup(inputs.indices, inputs.bag_offsets)
            if inputs.receive_offsets is not None:
                rows = pool_rows(rows, inputs.receive_offsets)
            predictions[rank].append(model.predict(model.bottom(inputs.dense), placement.in_table_order(rows)))
    return predictions


class _Rows:
    """Request source that holds only the mini-batch of one rank."""

    def __init__(self, source: RequestSource, rank: int, num_ranks: int) -> None:
        self.num_rows = source.num_rows // num_ranks
        self._source = source
        self._first = rank * self.num_rows

    def lookups(self, step: int) -> Ids:
        """(T,) lookups per row, as in the whole batch."""
        return self._source.lookups(step)

    def ids(self, step: int, table: int) -> Ids:
        """(B, lookups) ids."""
        return self._source.ids(step, table)[self._first : self._first + self.num_rows]

    def dense(self, step: int, first_row: int, end_row: int) -> npt.NDArray[np.float32]:
        """Dense inputs; rows are counted from the first row of the mini-batch."""
        return self._source.dense(step, self._first + first_row, self._first + end_row)
