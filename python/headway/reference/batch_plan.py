# SPDX-License-Identifier: Apache-2.0
"""Plain definition of ``plan_batches``: which rank computes which samples of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def plan_batches(
    weights: Tensor,
    num_ranks: int,
    *,
    method: str = "fixed_greedy",
    tokens: Tensor | None = None,
    max_tokens: int = 0,
    step: int = 0,
) -> Tensor:
    """See :func:`headway.ops.plan_batches`. O(N R) for N samples and R ranks."""
    costs, sizes = weights.tolist(), [0] * len(weights) if tokens is None else tokens.tolist()
    is_fixed = method.startswith("fixed")
    bins = {"fixed_zigzag": _zigzag, "variable_segments": _segments}.get(method, lambda *_: None)(costs, num_ranks)
    if bins is None or (max_tokens and max(_sums(bins, sizes, num_ranks)) > max_tokens):
        bins = _greedy(costs, num_ranks, is_fixed=is_fixed, sizes=sizes, max_tokens=max_tokens)
    if bins is None:
        bins = _greedy(sizes, num_ranks, is_fixed=is_fixed, sizes=sizes, max_tokens=max_tokens)
    if bins is None:
        raise ValueError("no rank has room for a sample")
    return torch.tensor([(each + step) % num_ranks for each in bins], dtype=torch.int64)


def _heaviest_first(costs: Sequence[int]) -> list[int]:
    return sorted(range(len(costs)), key=lambda sample: (-costs[sample], sample))


def _sums(bins: Sequence[int], sizes: Sequence[int], num_ranks: int) -> list[int]:
    return [sum(size for of, size in zip(bins, sizes, strict=True) if of == each) for each in range(num_ranks)]


def _greedy(
    costs: Sequence[int], num_ranks: int, *, is_fixed: bool, sizes: Sequence[int], max_tokens: int
) -> list[int] | None:
    least, num_larger = divmod(len(costs), num_ranks) if is_fixed else (len(costs), 0)
    bins = [0] * len(costs)
    of_bins: list[list[int]] = [[] for _ in range(num_ranks)]
    for sample in _heaviest_first(costs):
        has_room = [
            each
            for each, members in enumerate(of_bins)
            if (len(members) < least or (len(members) == least and num_larger > 0))
            and (not max_tokens or sum(sizes[i] for i in members) + sizes[sample] <= max_tokens)
        ]
        if not has_room:
            return None
        bins[sample] = min(has_room, key=lambda each: (sum(costs[i] for i in of_bins[each]), len(of_bins[each]), each))
        num_larger -= len(of_bins[bins[sample]]) == least
        of_bins[bins[sample]].append(sample)
    return bins


def _zigzag(costs: Sequence[int], num_ranks: int) -> list[int]:
    bins = [0] * len(costs)
    for position, sample in enumerate(_heaviest_first(costs)):
        turn, place = divmod(position, num_ranks)
        bins[sample] = num_ranks - 1 - place if turn % 2 else place
    return bins


def _segments(costs: Sequence[int], num_ranks: int) -> list[int]:
    if sum(costs) == 0:
        costs = [1] * len(costs)
    bins = [0] * len(costs)
    rest, segment, cost = sum(costs), 0, 0
    for sample in _heaviest_first(costs):
        missing = rest // (num_ranks - segment) - cost
        if segment < num_ranks - 1 and cost > 0 and costs[sample] - missing > missing:
            rest, segment, cost = rest - cost, segment + 1, 0
        bins[sample] = segment
        cost += costs[sample]
    return bins
