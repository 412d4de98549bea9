# SPDX-License-Identifier: Apache-2.0
"""The part of a batch that one rank of a context-parallel group trains on. All ranks draw the same batches."""

from __future__ import annotations

from dataclasses import replace

import torch
from headway.nn import token_keys
from headway.nn.sequences import sequence_of_tokens
from headway.parallel.context_parallel import ContextParallel

from dlrm_examples.next_item.batches import Batch


def own_part(batch: Batch, context: ContextParallel, *, seed: int, step: int) -> Batch:
    """Returns the tokens of a batch that this rank owns. Dropout does not depend on the number of ranks.

    Args:
        batch: the whole batch, the same on all ranks of the group.
        context: the group.
        seed, step: determine the dropout masks, together with the place of a token in the batch.
    """
    sequences = batch.sequences
    plan = context.plan(sequences.offsets.diff().cpu(), samples="all")
    samples = sequence_of_tokens(sequences.offsets, len(batch.items))
    keys = token_keys(torch.arange(plan.batch.num_sequences), samples, batch.positions, seed=seed, step=step)
    assert sequences.times is not None and sequences.query_times is not None
    whole = [batch.items, batch.next_items, batch.positions, sequences.times, sequences.query_times, keys]
    items, next_items, positions, times, query_times, keys = context.shard(whole, plan)
    return replace(
        batch,
        items=items,
        next_items=next_items,
        positions=positions,
        sequences=plan.sequences(times, query_times, dropout_keys=keys),
        parallel=plan,
    )
