# SPDX-License-Identifier: Apache-2.0
"""``LossScaler``: float16 gradients that neither vanish nor overflow.

Idea: the loss is multiplied by a factor before the backward pass, and gradients are divided by it before the update. A
step whose gradients are not finite is skipped, and the factor halved. After many good steps it doubles.

Example: factor 65,536. A gradient of 1e-6, which float16 rounds to a few bits, travels as 0.066. If another one
overflows, the step is skipped and the factor is 32,768.

Invariants: all ranks skip the same steps, since they judge by the norm of all gradients, dense and sparse. Parameter
servers tell no norm: there ranks agree whether gradients of all are finite, before they send them. A row keeps its
value in a step that is skipped.
Reason: ``torch.amp.GradScaler`` decides for each optimizer and rank by itself, and gradients of rows differ by rank.
Source: Micikevicius et al., Mixed Precision Training, ICLR 2018; the defaults are those of GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.embedding import HashTableCollection, clip_grad_norm_
from headway.hybrid import HybridTables
from headway.training.trained_tables import TrainedTables


class LossScaler:
    """Scales losses, and judges gradients.

    Args:
        enabled: False: the factor is 1, and no step is skipped.
        factor: the first one.
        growth_interval: steps in a row with finite gradients after which the factor doubles.
    """

    def __init__(self, *, enabled: bool, factor: float = 65_536.0, growth_interval: int = 2_000) -> None:
        self.enabled = enabled
        self.factor = factor if enabled else 1.0
        self.num_skipped = 0
        self._growth_interval, self._num_good = growth_interval, 0

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the factor."""
        return loss * self.factor if self.enabled else loss

    def prepare_update(
        self, parameters: Sequence[nn.Parameter], tables: Sequence[TrainedTables], *, clip_norm: float
    ) -> bool:
        """Divides gradients by the factor, and clips them by the norm of all. All ranks call it.

        Args:
            parameters: dense ones, with gradients that are equal on all ranks.
            tables: with pending gradients.
            clip_norm: largest norm; 0: no limit.
        Returns:
            False if the gradients are not finite: the caller drops them. Without scaling always True.
        """
        of_ranks = [each for each in tables if isinstance(each, HashTableCollection)]
        if not self.enabled:
            if clip_norm:
                clip_grad_norm_(parameters, clip_norm, tables=of_ranks)
            return True
        dense = [each.grad for each in parameters if each.grad is not None]
        torch._foreach_mul_(dense, 1 / self.factor)
        for each in tables:
            each.scale_gradients(1 / self.factor)
        norm = float(clip_grad_norm_(parameters, clip_norm or math.inf, tables=of_ranks))
        # All of them are asked on each rank, whatever the first one says.
        are_finite = [each.has_finite_gradients() for each in tables if isinstance(each, HybridTables)]
        is_finite = math.isfinite(norm) and all(are_finite)
        self._num_good = self._num_good + 1 if is_finite else 0
        if not is_finite:
            self.factor, self.num_skipped = self.factor / 2, self.num_skipped + 1
        elif self._num_good == self._growth_interval:
            self.factor, self._num_good = self.factor * 2, 0
        return is_finite

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "num_good": self._num_good, "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state. That of a training in another dtype has no effect."""
        if self.enabled and state.get("factor", 1.0) != 1.0:
            self.factor, self._num_good, self.num_skipped = state["factor"], state["num_good"], state["num_skipped"]
