# SPDX-License-Identifier: Apache-2.0
"""Dropout by counter: whether a value is dropped depends on its token, layer and column, and on nothing else.

Idea: each token has a 64-bit key, a hash of (seed, step, sample, index within the sample). A layer mixes its own
index and the column into it, and keeps the value if the top bits are below a bound. So a mask does not depend on the
rank that computes a sample, on the order of samples in a batch, or on how a sequence is cut.

Example: sample 7 is alone on rank 0, or third in a batch on rank 1. Its token 2 has the same key, so the same columns
are dropped.

Invariant: equal keys, layers and columns give equal decisions on all devices, since all of it is integer arithmetic.
Complexity: about ten integer operations per value.
Source: the mixing function is the finalizer of splitmix64 (Steele, Lea and Flood 2014).

Shapes: B samples, T tokens of all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 24  #: Precision of the probability.
#: Odd factors that spread positions, layers and columns over all 64 bits.
_POSITION, _LAYER, _COLUMN = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7


def token_keys(sample_ids: Tensor, samples: Tensor, places: Tensor, *, seed: int, step: int) -> Tensor:
    """Returns the key of each token, (T,) int64.

    Args:
        sample_ids: (B,) int64, a number of each sample that is the same on all ranks.
        samples: (T,) int64, index in ``sample_ids`` of each token's sample.
        places: (T,) int64, index of each token within its sample.
        seed: seed of the run.
        step: optimizer step.
    """
    of_step = int(_mix(torch.tensor(_signed(seed * _COLUMN + step))))  # On the host: a copy from it would wait.
    of_samples = _mix(sample_ids ^ of_step)
    return _mix(of_samples[samples] + places * _signed(_POSITION))


def keep_mask(keys: Tensor, num_columns: int, *, layer: int, dropout: float) -> Tensor:
    """Returns the values that dropout keeps, (T, num_columns) bool.

    Args:
        keys: (T,) int64 of ``token_keys()``.
        num_columns: values per token.
        layer: index of the layer.
        dropout: probability that a value is dropped.
    """
    columns = torch.arange(num_columns, device=keys.device) * _signed(_COLUMN) + _signed(layer * _LAYER)
    mixed = _mix(keys[:, None] ^ columns)
    return _shifted(mixed, 64 - _BITS) < round((1 - dropout) * (1 << _BITS))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifts to the right and fills with zeros: torch's own shift of int64 repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Returns the lower 64 bits as a signed number."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
