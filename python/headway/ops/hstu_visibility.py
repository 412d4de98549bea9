# SPDX-License-Identifier: Apache-2.0
"""Visibility of ranges of tokens under the mask of HSTU attention, as an operator on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.ops.library import LIBRARY


def hstu_visibility(
    lengths: Tensor,
    num_contextual: Tensor,
    num_targets: Tensor,
    ranges: Tensor,
    *,
    causal: bool = True,
    window: int = 0,
    full_attention_tail: int = 0,
) -> Tensor:
    """Tells for pairs of ranges whether queries of one see keys of the other: (N,) uint8, 0 none, 1 some pairs, 2 all.

    The kernels ask the same function (``HstuSequenceMask::visibility``) which blocks to compute. Empty ranges give 0.

    Args:
        lengths, num_contextual, num_targets: (B,) int64 of each sequence.
        ranges: (N, 5) int64: sequence, first and end of the queries, first and end of the keys, by their places in the
            sequence.
        causal, window, full_attention_tail: as in :func:`headway.ops.hstu_attention`.

    Raises:
        ValueError: shapes or dtypes do not fit, or a range does not lie in its sequence.
    """
    out: Tensor = torch.ops.headway.hstu_visibility(
        lengths, num_contextual, num_targets, ranges, causal, window, full_attention_tail
    )
    return out


@torch.library.register_fake("headway::hstu_visibility", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    lengths: Tensor,
    num_contextual: Tensor,
    num_targets: Tensor,
    ranges: Tensor,
    causal: bool,
    window: int,
    full_attention_tail: int,
) -> Tensor:
    return ranges.new_empty(ranges.shape[0], dtype=torch.uint8)
