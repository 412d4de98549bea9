# SPDX-License-Identifier: Apache-2.0
"""``tune_budget``: the largest budget of a batch that pays on this device, found before a training begins.

Idea: the budget is doubled from that of one sample of the greatest length. For each size the worst batches that it
allows are passed forward and backward: all samples as long as allowed, and all as short as possible. Two lines are
fitted to the sizes so far: seconds t = c + a B, and memory m = d + e B, for a budget B. The budget grows while the next
size gains at least 1% of throughput, B / t, and the line of memory stays below the limit.

Example: c is 4 ms and a is 1 us per token. From 100,000 to 200,000 tokens the throughput grows from 0.962 to 0.980
tokens per us, which is 2.0%; from 200,000 to 400,000 by 0.99%. So the budget is 200,000, if its memory is there. If the
line of memory reaches the limit at 150,000, the budget is 150,000.

Invariants: all ranks measure the same sizes and take the longest time and the fullest memory of any, so all find the
same budget. Nothing is inserted or learned (``TrialPasses``).
Complexity: passes over less than four times the tokens of the budget found, for each repetition.
Limits: gradients of embeddings, the sum of dense ones over ranks, the update and rows that are inserted are not in a
pass. States of the optimizer are added to its memory; batches in flight are not.
Source: MTGRBoost, section 5.1, sets the batch by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from headway.config_files import ConfigError
from headway.data.budget_reader import Budget
from headway.training.trial_passes import PassMemoryError, TrialPasses

_MIN_GAIN = 0.01


class PeakMemory(Protocol):
    """Measures the memory of a device."""

    def reset(self) -> None:
        """Forgets the peak before now."""
        ...

    def peak_share(self) -> float:
        """Returns the largest part of the memory in use since ``reset()``, 0 to 1."""
        ...


class Measured(NamedTuple):
    """The worst batch of a budget on all ranks: seconds of a pass, and the part of the memory in use, 0 to 1."""

    budget: float
    seconds: float
    memory: float


@dataclass(frozen=True)
class TunedBudget:
    """A budget with what is expected of it.

    Attributes:
        tokens: see ``Budget.tokens``.
        memory: part of the memory that the fullest device is expected to use, 0 to 1.
        is_bound_by_memory: more memory would allow a budget with at least 1% more throughput.
    """

    tokens: int
    memory: float
    is_bound_by_memory: bool


def tune_budget(
    passes: TrialPasses,
    memory: PeakMemory,
    *,
    longest: int,
    square_weight: float,
    limit: float,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> TunedBudget:
    """Finds the budget. All ranks call it.

    Args:
        passes: measures passes.
        memory: of the device of this rank.
        longest: most tokens of a sample, contextual ones included.
        square_weight: see ``Budget``.
        limit: part of the memory that a step may use, 0 to 1.
        device: of numbers that are exchanged.
        group: ranks of the training; None: this rank alone.

    Raises:
        ConfigError: one sample of ``longest`` tokens takes more than ``limit``.
    """
    measured: list[Measured] = []
    size = Budget(1, square_weight).cost(longest)
    while True:
        measured.append(_agree(_measure(passes, memory, Budget(size, square_weight), longest), device, group))
        if measured[0].memory > limit:
            raise ConfigError(
                f"a sample of {longest} tokens takes more than {limit:.0%} of the memory of the device: lower "
                "model.max_length, or raise data.budget_memory"
            )
        # Two sizes at least, since one does not tell the fixed part of the memory. A second one that does not fit is
        # found by its pass.
        is_full = measured[-1].memory > limit or (len(measured) > 1 and largest_within(measured, limit) < 2 * size)
        if is_full or not next_size_pays(measured):
            return choose(measured, limit)
        size *= 2


def _measure(passes: TrialPasses, memory: PeakMemory, budget: Budget, longest: int) -> Measured:
    """Passes the worst batches of a budget. The memory is infinite if the device does not hold them."""
    memory.reset()
    seconds = 0.0
    try:
        for length in (longest, passes.shortest):
            _, of_batch = passes.time(count=max(1, int(budget.tokens / budget.cost(length))), length=length)
            seconds = max(seconds, of_batch)
        return Measured(budget.tokens, seconds, memory.peak_share())
    except PassMemoryError:
        return Measured(budget.tokens, seconds, math.inf)


def _agree(own: Measured, device: torch.device, group: dist.ProcessGroup | None) -> Measured:
    if group is None or group.size() == 1:
        return own
    worst = torch.tensor([own.seconds, own.memory], dtype=torch.float64, device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
    seconds, memory = worst.tolist()
    return Measured(own.budget, seconds, memory)


def choose(measured: Sequence[Measured], limit: float) -> TunedBudget:
    """Chooses a budget from the sizes that were measured, in ascending order. Only the last may be above ``limit``."""
    within = [each for each in measured if each.memory <= limit]
    last, tokens, memory = within[-1], within[-1].budget, within[-1].memory
    if len(within) < len(measured):
        above = measured[-1]
        part = (limit - memory) / (above.memory - memory)  # 0 if the device did not hold it.
        tokens, memory = tokens + part * (above.budget - tokens), memory if part == 0 else limit
    elif len(measured) > 1 and next_size_pays(measured):
        tokens = max(tokens, min(2 * tokens, largest_within(measured, limit)))
        memory = max(memory, limit * tokens / largest_within(measured, limit))
    return TunedBudget(int(tokens), memory, is_bound_by_memory=tokens > last.budget or len(within) < len(measured))


def next_size_pays(measured: Sequence[Measured]) -> bool:
    """Whether twice the last size has at least 1% more throughput, by the line fitted to all."""
    if len(measured) < 2:
        return True
    fixed, of_token = _line([each.budget for each in measured], [each.seconds for each in measured])
    size = measured[-1].budget
    return 2 * (fixed + of_token * size) >= (1 + _MIN_GAIN) * (fixed + 2 * of_token * size)


def largest_within(measured: Sequence[Measured], limit: float) -> float:
    """Returns the budget at which the memory reaches ``limit``, by two sizes or more; infinity if it never does."""
    start, slope = _line([each.budget for each in measured], [each.memory for each in measured])
    return float("inf") if slope <= 0 else (limit - start) / slope


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fits y = start + slope x by least squares of relative errors. ``start`` is at least 0.

    Sizes differ by powers of two. Without weights the largest alone would determine the line.
    """
    columns = torch.tensor(x, dtype=torch.float64)
    values = torch.tensor(y, dtype=torch.float64)
    weights = 1 / values.clamp_min(1e-12)
    inputs = torch.stack([torch.ones_like(columns), columns], dim=1) * weights[:, None]
    start, slope = torch.linalg.lstsq(inputs, (values * weights)[:, None]).solution[:, 0].tolist()
    if start < 0:
        weighted = columns * weights
        return 0.0, float((weighted * values * weights).sum() / weighted.square().sum())
    return start, slope
