# SPDX-License-Identifier: Apache-2.0
"""Inputs of one rank in one step, as tensors in the order of sending. They are built before the clock starts.

A bag holds the rows that one row of a mini-batch looks up in one table; its embeddings are summed.

Shapes: B rows of a mini-batch, F dense inputs, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from dlrm_examples.dlrm_inference.model import EmbeddingShard
from dlrm_examples.dlrm_inference.placement import TablePlacement
from dlrm_examples.dlrm_inference.request_source import Ids, RequestSource


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Inputs of one step of one rank. Row counts refer to the exchanged embedding rows (summed bags, or single rows).

    Attributes:
        dense: (B, F) float32, dense inputs of this rank's mini-batch.
        indices: int64 rows of the rank's stacked tables, ordered by destination, table, row of the mini-batch, and
            index in the bag.
        bag_offsets: int64, first index of each bag in ``indices``; None if the owner does not sum bags.
        send_rows: (R,) number of rows to each rank.
        receive_rows: (R,) number of rows from each rank.
        receive_offsets: int64, first received row of each bag, in the order of arrival; None if the receiver does not
            sum bags.
    """

    dense: torch.Tensor
    indices: torch.Tensor
    bag_offsets: torch.Tensor | None
    send_rows: list[int]
    receive_rows: list[int]
    receive_offsets: torch.Tensor | None

    def to(self, device: torch.device) -> StepInputs:
        """Returns a copy on ``device``."""
        return replace(
            self,
            dense=self.dense.to(device),
            indices=self.indices.to(device),
            bag_offsets=None if self.bag_offsets is None else self.bag_offsets.to(device),
            receive_offsets=None if self.receive_offsets is None else self.receive_offsets.to(device),
        )


def make_step_inputs(
    source: RequestSource,
    shard: EmbeddingShard,
    step: int,
    *,
    rank: int,
    placement: TablePlacement,
    pool_at_receiver: bool,
) -> StepInputs:
    """Builds the inputs of ``rank`` for one step. Local: no communication."""
    num_ranks = placement.num_ranks
    mini_batch = source.num_rows // num_ranks
    lookups = source.lookups(step)
    single = bool((lookups == 1).all())
    pool_at_receiver = pool_at_receiver and not single
    rows_per_table = lookups * mini_batch if pool_at_receiver else np.full(len(lookups), mini_batch)
    receive_rows = [int(rows_per_table[list(tables)].sum()) for tables in placement.tables_of_rank]
    pool_at_owner = not single and not pool_at_receiver
    return StepInputs(
        dense=torch.from_numpy(source.dense(step, rank * mini_batch, (rank + 1) * mini_batch).copy()),
        indices=_indices(source, shard, step, num_ranks),
        bag_offsets=_offsets(lookups[list(shard.tables)], mini_batch, num_ranks) if pool_at_owner else None,
        send_rows=[receive_rows[rank]] * num_ranks,
        receive_rows=receive_rows,
        receive_offsets=_offsets(lookups[placement.arrival_order], mini_batch, 1) if pool_at_receiver else None,
    )


def _indices(source: RequestSource, shard: EmbeddingShard, step: int, num_ranks: int) -> torch.Tensor:
    by_table = [
        (source.ids(step, table) + first).reshape(num_ranks, -1)
        for table, first in zip(shard.tables, shard.first_row, strict=True)
    ]
    if not by_table:
        return torch.empty(0, dtype=torch.int64)
    return torch.from_numpy(np.concatenate(by_table, axis=1).reshape(-1))


def _offsets(lookups: Ids, mini_batch: int, repeats: int) -> torch.Tensor:
    """Offsets of bags: ``mini_batch`` bags of ``lookups[i]`` rows for each table i, all of it ``repeats`` times."""
    sizes = np.tile(np.repeat(lookups, mini_batch), repeats)
    return torch.from_numpy(np.cumsum(sizes) - sizes)
