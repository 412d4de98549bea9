# SPDX-License-Identifier: Apache-2.0
"""``WorkDivision``: how the samples of a training are divided among ranks, with what was measured for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from headway.data.budget_reader import Budget
from headway.data.reader import Position, StepBatch
from headway.parallel.balance import (
    BalancedSteps,
    BalancePlan,
    SampleWeight,
    StepBudget,
)
from headway.training.budget_tuning import tune_budget
from headway.training.config import TrainingConfig
from headway.training.device_memory import DeviceMemory, ranks_of_host
from headway.training.parity import expect_additive
from headway.training.sample_cost import measure_cost
from headway.training.train_step import TrainStep
from headway.training.trial_passes import TrialPasses

_SAMPLES_TO_FIT = 8  #: Longest samples in the largest pass to which the cost of a sample is fitted.


class WorkDivision:
    """Makes the budget of a rank, or the steps whose samples move. All ranks make the same calls.

    Args:
        config: all settings.
        model: a ``TrainableModel``.
        train_step: of the model.
        longest: most tokens of a sample.
        device: of the model.
        group: ranks of the training; None: this rank alone.
        say: called on rank 0 with a line about each measurement.

    Attributes:
        square_weight, weight_exponent: cost of a sample, set or measured; None: not known yet, or not used.
        budget: tokens of a micro-batch, or of a step, set or measured; 0: not known yet, or not used.
    """

    def __init__(
        self,
        config: TrainingConfig,
        model: Any,
        train_step: TrainStep,
        *,
        longest: int,
        device: torch.device,
        group: dist.ProcessGroup | None,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._model, self._train_step = config, model, train_step
        self._longest, self._device, self._group = longest, device, group
        self._say = say
        self.square_weight = config.data.square_weight or None
        self.weight_exponent = config.data.weight_exponent or None
        self.budget = config.data.budget
        self._balance_group: dist.ProcessGroup | None = None

    def take_over(self, *, square_weight: float | None, weight_exponent: float | None, budget: int) -> None:
        """Takes what a checkpoint has for values that are not set."""
        if self.square_weight is None:
            self.square_weight = square_weight
        self.weight_exponent = self.weight_exponent or weight_exponent
        self.budget = self.budget or budget

    def budget_of_rank(self) -> Budget | None:
        """Returns the limit of a micro-batch of this rank, and measures what is not set; None: there is none."""
        data = self._config.data
        if data.balance != "budget" or data.moves_samples:
            return None
        if data.budget_unit == "weight":
            self._measure_cost()
        weight = self.square_weight or 0.0
        if not self.budget:
            self._tune_budget(weight)
        return Budget(self.budget, weight)

    def balanced(
        self, steps: Iterator[StepBatch], *, start: Position, num_steps: int | None, busy_s: Callable[[], float]
    ) -> BalancedSteps | None:
        """Moves the samples of the steps between ranks, over a group of its own; None: samples do not move.

        Args:
            steps: of this rank.
            start: position of the first one.
            num_steps: most steps; None: all.
            busy_s: see ``BalancedSteps``.
        Raises:
            ConfigError: losses of the model depend on which samples share a batch.
        """
        data = self._config.data
        if not data.moves_samples:
            return None
        plan = self._make_plan()
        if self._balance_group is None and self._group is not None and self._group.size() > 1:
            backend = dist.get_backend(self._group)
            self._balance_group = dist.new_group(  # type: ignore[assignment]
                dist.get_process_group_ranks(self._group),
                backend="gloo" if backend == "nccl" else backend,
                use_local_synchronization=self._group is not dist.group.WORLD,
            )
        is_budget = data.balance == "budget"
        return BalancedSteps(
            steps,
            plan=plan,
            schema=data.schema(),
            group=self._balance_group,
            budget=StepBudget(data.budget, start=start, seed=self._config.run.seed) if is_budget else None,
            num_steps=num_steps,
            busy_s=busy_s,
            pin_memory=self._device.type == "cuda",
        )

    def trial_passes(self, *, autocast: Any = None, warmups: int = 2, rounds: int = 5) -> TrialPasses:
        """Returns a context in which passes are measured; see ``TrialPasses``."""
        return TrialPasses(
            self._model,
            self._config.data.schema(),
            device=self._device,
            autocast=autocast or self._train_step.autocast,
            group=self._group,
            warmups=warmups,
            rounds=rounds,
        )

    def _make_plan(self) -> BalancePlan:
        """Returns the plan of all steps, and measures the cost of a sample where it is not set."""
        data = self._config.data
        passes = functools.partial(self.trial_passes, autocast=contextlib.nullcontext)
        expect_additive(self._model, data.schema(), passes)
        if data.balance != "budget" or data.budget_unit == "weight":
            self._measure_cost()
        is_power = data.weight_model == "power"
        return BalancePlan(
            mode="fixed" if data.balance == "fixed" else "variable",
            planner=data.planner,
            weight=SampleWeight(exponent=self.weight_exponent)
            if is_power
            else SampleWeight(square=self.square_weight or 0.0),
            max_tokens=data.max_tokens,
            micro_batches=data.micro_batches,
        )

    def _tune_budget(self, square_weight: float) -> None:
        memory = DeviceMemory(
            self._device,
            num_ranks=ranks_of_host(1 if self._group is None else self._group.size()),
            extra_bytes=self._train_step.state.bytes_of_first_update(),
        )
        with self.trial_passes(warmups=1, rounds=3) as passes:
            tuned = tune_budget(
                passes,
                memory,
                longest=self._longest,
                square_weight=square_weight,
                limit=self._config.data.budget_memory,
                device=self._device,
                group=self._group,
            )
        self.budget = tuned.tokens
        unit = "weighted tokens" if square_weight else "tokens"
        self._say(
            f"the budget is {tuned.tokens:,} {unit}, with {tuned.memory:.0%} of the memory: "
            + ("more do not fit" if tuned.is_bound_by_memory else "twice as many are less than 1% faster per token")
        )

    def _measure_cost(self) -> None:
        """Measures the cost of a sample by its length, unless it is set or of a checkpoint."""
        is_power = self._config.data.weight_model == "power"
        if (self.weight_exponent if is_power else self.square_weight) is not None:
            return
        with self.trial_passes() as passes:
            tokens = _SAMPLES_TO_FIT * self._longest
            cost = measure_cost(passes, tokens=tokens, longest=self._longest, device=self._device, group=self._group)
        if is_power:
            self.weight_exponent = cost.exponent
        else:
            self.square_weight = cost.square
        self._say(
            f"a sample of L tokens costs L + {cost.square:.3g} L^2, which misses measured times by "
            f"{cost.square_error:.1%}, or L^{cost.exponent:.2f}, which misses them by {cost.power_error:.1%}"
        )
