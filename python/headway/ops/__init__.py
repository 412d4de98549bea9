# SPDX-License-Identifier: Apache-2.0
"""Kernels of recommendation models as PyTorch operators, with typed Python functions.

The operators are ``torch.ops.headway.*``. Importing this package registers them, their shapes for ``torch.compile`` and
their gradients. The function of the same name in :mod:`headway.reference` defines the result of each operator.

``ranged_dispatch`` reorders jagged rows for an all-to-all: by destination rank, then feature, then sample. Each rank
has a range of the samples. ``ranged_combine`` is the inverse: it restores the order by feature, then sample. The
``_dense`` variants are for exactly one row per feature and sample, so they take no lengths.

``OPERATOR_LIBRARY`` is the path of the library that defines the operators. C++ programs load it without Python
(examples/torch_consumer).
"""

from headway._extension_import import OPERATOR_LIBRARY
from headway.ops.batch_plan import plan_batches
from headway.ops.gated_norm import gated_norm
from headway.ops.hstu_attention import hstu_attention
from headway.ops.hstu_visibility import hstu_visibility
from headway.ops.jagged_order import (
    jagged_permute,
    jagged_transpose,
    ranged_combine,
    ranged_combine_dense,
    ranged_dispatch,
    ranged_dispatch_dense,
)
from headway.ops.jagged_rows import (
    jagged_add_dense,
    jagged_concat,
    jagged_expand,
    jagged_reduce,
    jagged_split,
    jagged_to_padded,
    join_ranges,
    padded_to_jagged,
)
from headway.ops.run_lengths import run_lengths, unique_with_counts
from headway.ops.silu_split import silu_split

__all__ = [
    "OPERATOR_LIBRARY",
    "gated_norm",
    "hstu_attention",
    "hstu_visibility",
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
