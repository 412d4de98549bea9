"""What one rank needs in one step, as tensors in the order in which they are sent, made before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from dlrm_examples.bls_dlrm.model import EmbeddingShard
from dlrm_examples.bls_dlrm.placement import TablePlacement
from dlrm_examples.bls_dlrm.request_source import Ids, RequestSource


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """One step of one rank; row counts are those of the exchange, whose rows have D columns.

    Attributes:
        dense: (B, F) float32, this rank's mini-batch.
        indices: rows of the rank's stacked tables, ordered by destination, table, row of the mini-batch, bag.
        bag_offsets: where each bag begins, if bags are summed before they are sent and have more than one row.
        send_rows: rows for each rank.
        receive_rows: rows from each rank.
        receive_offsets: where each bag begins among the received rows, if bags are summed by the receiver.
    """

    dense: torch.Tensor
    indices: torch.Tensor
    bag_offsets: torch.Tensor | None
    send_rows: list[int]
    receive_rows: list[int]
    receive_offsets: torch.Tensor | None

    def to(self, device: torch.device) -> StepInputs:
        """The same on a device."""
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
    """Builds the inputs of ``rank`` for one step; takes part in no communication."""
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
    """Where bags begin when every table has ``mini_batch`` bags of its size, the whole ``repeats`` times over."""
    sizes = np.tile(np.repeat(lookups, mini_batch), repeats)
    return torch.from_numpy(np.cumsum(sizes) - sizes)
