# SPDX-License-Identifier: Apache-2.0
"""Operator ``plan_batches``: which rank computes which samples of a step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headway.ops.library import LIBRARY

Method = Literal["fixed_greedy", "fixed_zigzag", "variable_greedy", "variable_segments"]


def plan_batches(
    weights: Tensor,
    num_ranks: int,
    *,
    method: Method = "fixed_greedy",
    tokens: Tensor | None = None,
    max_tokens: int = 0,
    step: int = 0,
) -> Tensor:
    """Divides the samples of a step among ranks, so that all have about the same work.

    Samples are dealt heaviest first. All arithmetic is of integers, so ranks with the same weights find the same plan.

    Args:
        weights: (N,) int64 on the CPU, cost of each sample in any unit, at least 0.
        num_ranks: number of ranks. With fewer samples than ranks some get none.
        method: ``fixed_greedy``: each sample goes to the rank of the least weight that has room, and all ranks get as
            many samples, +-1. ``fixed_zigzag``: the sorted samples are dealt from left to right, then from right to
            left. ``variable_greedy``: as ``fixed_greedy``, with any number of samples. ``variable_segments``:
            contiguous segments of the sorted samples.
        tokens: (N,) int64 on the CPU, at least 0; needed for ``max_tokens``.
        max_tokens: most tokens of a rank, in every method; 0: no limit.
        step: number of the step. Shares rotate over ranks by it.

    Returns:
        the rank of each sample, (N,) int64.

    Raises:
        ValueError: a weight is negative, their sum does not fit 63 bits, or no rank has room for a sample.

    Source: FreeScale (MLSys 2026) for zig-zag and segments; Graham 1969 for greedy.
    """
    ranks: Tensor = torch.ops.headway.plan_batches(weights, tokens, num_ranks, method, max_tokens, step)
    return ranks


@torch.library.register_fake("headway::plan_batches", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(weights: Tensor, tokens: Tensor | None, num_ranks: int, method: str, max_tokens: int, step: int) -> Tensor:
    return torch.empty_like(weights)
