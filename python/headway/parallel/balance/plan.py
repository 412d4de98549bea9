# SPDX-License-Identifier: Apache-2.0
"""``BalancePlan``: how the samples of a step are divided among ranks and their micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from headway.ops import plan_batches
from headway.ops.batch_plan import Method
from headway.parallel.balance.sample_exchange import BalanceError
from headway.parallel.balance.sample_weight import SampleWeight

Mode = Literal["fixed", "variable"]
Planner = Literal["greedy", "zigzag", "segments"]

_METHODS: dict[tuple[Mode, Planner], Method] = {
    ("fixed", "greedy"): "fixed_greedy",
    ("fixed", "zigzag"): "fixed_zigzag",
    ("variable", "greedy"): "variable_greedy",
    ("variable", "segments"): "variable_segments",
}


@dataclass(frozen=True)
class BalancePlan:
    """Settings of a plan. All ranks have the same.

    Attributes:
        mode: ``fixed``: all micro-batches have as many samples, +-1. ``variable``: their numbers differ.
        planner: ``greedy``, or as FreeScale has it ``zigzag`` for fixed and ``segments`` for variable numbers; see
            ``headway.ops.plan_batches``.
        weight: of a sample.
        max_tokens: most tokens of a micro-batch of a rank; 0: no limit.
        micro_batches: parts into which each rank divides its samples.

    Raises:
        ValueError: the planner is not for this mode, or a number is out of range.
    """

    mode: Mode = "fixed"
    planner: Planner = "greedy"
    weight: SampleWeight = field(default_factory=SampleWeight)
    max_tokens: int = 0
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if (self.mode, self.planner) not in _METHODS:
            raise ValueError(f"the planner {self.planner} does not make batches of {self.mode} size")
        if self.micro_batches < 1 or self.max_tokens < 0:
            raise ValueError("micro_batches is at least 1, and max_tokens at least 0")

    def divide(
        self, weights: torch.Tensor, tokens: torch.Tensor, *, num_ranks: int, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rank of each sample, and its micro-batch there, (N,) int64 each. All ranks find the same.

        Samples are divided among the micro-batches of all ranks at once, so each stays within ``max_tokens``. Then each
        rank gets ``micro_batches`` of them, with about the same weight.

        Args:
            weights, tokens: (N,) int64 of all samples of the step.
            num_ranks: number of ranks.
            step: number of the step, by which shares rotate.
        Raises:
            BalanceError: samples do not fit the micro-batches.
        """
        method, num_bins = _METHODS[self.mode, self.planner], num_ranks * self.micro_batches
        try:
            bins = plan_batches(weights, num_bins, method=method, tokens=tokens, max_tokens=self.max_tokens)
        except ValueError as error:
            if not self.max_tokens:  # Weights are out of range.
                raise BalanceError(f"{len(tokens):,} samples cannot be divided: {error}") from error
            raise BalanceError(
                f"{len(tokens):,} samples of {int(tokens.sum()):,} tokens, the longest of {int(tokens.max()):,}, do not"
                f" fit {num_ranks} x {self.micro_batches} micro-batches of at most {self.max_tokens:,} tokens: raise "
                "max_tokens or micro_batches, or take fewer samples for a step"
            ) from error
        of_bins = torch.zeros(num_bins, dtype=torch.int64).index_add_(0, bins, weights)
        rank_of_bin = plan_batches(of_bins, num_ranks, method="fixed_greedy", step=step)
        place = torch.empty_like(rank_of_bin)  # Index of each bin among the micro_batches bins of its rank.
        place[torch.argsort(rank_of_bin, stable=True)] = torch.arange(num_bins) % self.micro_batches
        return rank_of_bin[bins], place[bins]
