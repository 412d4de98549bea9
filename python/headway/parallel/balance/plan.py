# SPDX-License-Identifier: Apache-2.0
"""``BalancePlan``: how the samples of a step are divided among ranks and their micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from headway.ops import plan_batches
from headway.ops.batch_plan import Method
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
        mode: ``fixed``: all ranks get as many samples, +-1. ``variable``: their numbers differ.
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

    def ranks(self, weights: torch.Tensor, tokens: torch.Tensor, *, num_ranks: int, step: int) -> torch.Tensor:
        """Returns the rank of each sample, (N,) int64.

        Args:
            weights, tokens: (N,) int64 of all samples of the step.
            num_ranks: number of ranks.
            step: number of the step, by which shares rotate.
        Raises:
            ValueError: no rank has room for a sample.
        """
        return self._divide(weights, tokens, num_ranks, self.max_tokens * self.micro_batches, step)

    def micro_batch(self, weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the micro-batch of each sample of a rank, (N,) int64."""
        return self._divide(weights, tokens, self.micro_batches, self.max_tokens, 0)

    def _divide(
        self, weights: torch.Tensor, tokens: torch.Tensor, parts: int, max_tokens: int, step: int
    ) -> torch.Tensor:
        method = _METHODS[self.mode, self.planner]
        return plan_batches(weights, parts, method=method, tokens=tokens, max_tokens=max_tokens, step=step)
