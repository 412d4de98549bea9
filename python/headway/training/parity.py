# SPDX-License-Identifier: Apache-2.0
"""Finds models whose losses depend on which samples share a batch, before samples move between ranks.

Idea: a loss that is a sum over samples is additive: that of a joined batch is the sum of those of its parts. Two small
batches and their union are passed forward once. Losses with negatives from the batch, means over the batch, and scales
by its longest sample are not additive.

Limits: the pass is in evaluation mode, which inserts no rows. What a model does in training mode alone is not found,
such as negatives that are drawn from the batch there. BatchNorm is additive in evaluation mode, so its modules are
searched for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headway.config_files import ConfigError
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.training.trial_passes import TrialPasses, join_batches, make_samples

_TOLERANCE = 0.002  #: Relative. Sums in float32 differ by less than 1e-5.
_TOLERANCE_16_BIT = 0.03  #: For models with parameters of 16 bits.


def expect_additive(model: nn.Module, schema: SampleSchema, passes: Callable[[], TrialPasses]) -> None:
    """Checks that samples of the model may move between ranks. All ranks call it.

    Args:
        model: a ``TrainableModel``.
        schema: of its samples.
        passes: makes a context of passes, without autocast.
    Raises:
        ConfigError: they may not; the message names the module or the head.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(f"{name} normalises over its batch, so samples cannot move between ranks (data.scope)")
        if getattr(getattr(module, "config", None), "scale", None) == "batch_length":
            raise ConfigError(
                f'{name} scales by the longest sample of its batch (scale="batch_length"), so samples cannot move '
                'between ranks: use data.balance = "none"'
            )
    one, other = (make_samples(schema, torch.full((count,), length)) for count, length in ((3, 7), (5, 4)))
    is_16_bit = any(each.element_size() < 4 for each in model.parameters())
    tolerance = _TOLERANCE_16_BIT if is_16_bit else _TOLERANCE
    with passes() as measured:
        of_parts = [_losses(measured, batch) for batch in (one, other)]
        of_both = _losses(measured, join_batches(one, other))
    for head, total in of_both.items():
        parts = sum(each[head] for each in of_parts)
        if not abs(parts - total) <= tolerance * max(abs(parts), abs(total)):  # Also if one is NaN.
            raise ConfigError(
                f"the loss of {head} is {total:.4g} for 8 samples in one batch and {parts:.4g} in two: it is no sum "
                "over samples, so samples cannot move between ranks (data.scope)"
            )


def _losses(passes: TrialPasses, batch: SampleBatch) -> dict[str, float]:
    with torch.no_grad():
        found: Any = passes.forward(batch)
    return {name: float(total) for name, total in found.items()}
