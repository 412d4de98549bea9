# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch definitions of what the kernels compute. They are slow; tests use them as the oracle."""

from headway.reference.batch_plan import plan_batches
from headway.reference.gated_norm import gated_norm
from headway.reference.hstu_attention import hstu_attention, hstu_mask
from headway.reference.jagged import (
    jagged_add_dense,
    jagged_concat,
    jagged_expand,
    jagged_permute,
    jagged_reduce,
    jagged_split,
    jagged_to_padded,
    jagged_transpose,
    join_ranges,
    padded_to_jagged,
    ranged_combine,
    ranged_combine_dense,
    ranged_dispatch,
    ranged_dispatch_dense,
    run_lengths,
    unique_with_counts,
)
from headway.reference.silu_split import silu_split

__all__ = [
    "gated_norm",
    "hstu_attention",
    "hstu_mask",
    "jagged_add_dense",
    "jagged_concat",
    "jagged_expand",
    "jagged_permute",
    "jagged_reduce",
    "jagged_split",
    "jagged_to_padded",
    "jagged_transpose",
    "join_ranges",
    "padded_to_jagged",
    "plan_batches",
    "ranged_combine",
    "ranged_combine_dense",
    "ranged_dispatch",
    "ranged_dispatch_dense",
    "run_lengths",
    "silu_split",
    "unique_with_counts",
]
