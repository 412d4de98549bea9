# SPDX-License-Identifier: Apache-2.0
"""Jagged batches for tests, with an empty sequence and one of a single token."""

from __future__ import annotations

from dataclasses import replace

import torch
from headway.nn import HSTUConfig, HSTULayer, Sequences, next_times
from torch import Tensor

LENGTHS = [5, 0, 1, 7]
NUM_TOKENS = sum(LENGTHS)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def batch_of(lengths: list[int] = LENGTHS, *, seed: int = 0) -> Sequences:
    """Makes tokens that are seconds to months apart, in times in seconds.

    A token asks (as a query) at the time of the next token; the last one of a sequence asks an hour after itself.
    """
    generator = torch.Generator().manual_seed(seed)
    gaps = torch.exp(torch.rand(sum(lengths), generator=generator) * 16).long()
    times = 1_500_000_000 + gaps.cumsum(0)
    offsets = offsets_of(lengths)
    last = torch.tensor([int(times[end - 1]) + 3600 if end else 0 for end in offsets[1:].tolist()])
    return Sequences(
        offsets=offsets, max_length=max(lengths), times=times, query_times=next_times(times, offsets, last)
    )


def tokens(dim: int, *, num: int = NUM_TOKENS, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer_of(config: HSTUConfig, *, seed: int = 2, dtype: torch.dtype = torch.float64) -> HSTULayer:
    """Makes a layer with random weights, including norms and biases."""
    layer = HSTULayer(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return layer


def targets_of(sequences: Sequences, num_targets: list[int]) -> Sequences:
    return replace(sequences, num_targets=torch.tensor(num_targets, dtype=torch.int32))


def padded(values: Tensor, lengths: list[int]) -> Tensor:
    """Pads with zeros: (T, ...) to (B, N, ...)."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(lengths)), batch_first=True)


def jagged(values: Tensor, lengths: list[int]) -> Tensor:
    """Removes the padding: (B, N, ...) to (T, ...)."""
    return torch.cat([row[:length] for row, length in zip(values, lengths, strict=True)])
