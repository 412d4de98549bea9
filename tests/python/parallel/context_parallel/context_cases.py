# SPDX-License-Identifier: Apache-2.0
"""Batches, masks and layers for tests of context parallelism, and what ranks do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from headway.nn import HSTUConfig, HSTUStack, HSTUStackConfig, Sequences, next_times, token_keys
from headway.parallel.context_parallel import ContextParallel, ContextPlan, GroupBatch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences and a mask. ``options`` are fields of ``HSTUConfig``."""

    lengths: tuple[int, ...] = (5, 0, 1, 17, 40, 3)
    targets: int = 0  #: Targets of each sequence that is long enough.
    contextual: int = 0  #: Contextual tokens of each sequence that is long enough.
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def num_contextual(self) -> list[int] | None:
        return [min(each, self.contextual) for each in self.lengths] if self.contextual else None

    @property
    def num_targets(self) -> list[int] | None:
        if not self.targets:
            return None
        return [min(each - min(each, self.contextual), self.targets) for each in self.lengths]

    def config(self, **options: Any) -> HSTUConfig:
        sizes: dict[str, Any] = {"dim": 6, "max_length": 64, "num_heads": 4, "qk_dim": 3, "v_dim": 5}
        return HSTUConfig(**sizes | self.options | options)

    def group_batch(self) -> GroupBatch:
        """Returns the batch as a plan takes it, all brought by one rank."""

        def array(values: Any) -> Any:
            return None if values is None else np.array(values, dtype=np.int64)

        return GroupBatch(
            lengths=array(list(self.lengths)),
            num_targets=array(self.num_targets),
            num_contextual=array(self.num_contextual),
            samples_of_ranks=(len(self.lengths),),
        )


#: Every rule of the mask, both biases, and all scales.
BATCHES = {
    "causal": Batch(),
    "bidirectional": Batch(options={"causal": False}),
    "window": Batch(options={"window": 3}),
    "bidirectional_window": Batch(options={"causal": False, "window": 3}),
    "full_attention_tail": Batch(options={"window": 3, "full_attention_tail": 4}),
    "contextual": Batch(contextual=3),
    "targets": Batch(targets=4, options={"scale": "batch_length"}),
    "all_masks": Batch(contextual=2, targets=3, options={"window": 4, "full_attention_tail": 3, "scale": "length"}),
    "biases": Batch(contextual=2, targets=3, options={"position_bias": True, "num_time_buckets": 9}),
    "several_blocks": Batch(
        lengths=(300, 70, 9, 129),
        contextual=2,
        targets=40,
        options={"max_length": 300, "position_bias": True, "num_time_buckets": 9},
    ),
    "several_blocks_in_a_window": Batch(lengths=(300, 131), options={"max_length": 300, "window": 50}),
    "one_sequence": Batch(lengths=(37,), targets=5, options={"position_bias": True}),
    "fewer_tokens_than_ranks": Batch(lengths=(1, 0, 1)),
    "no_tokens": Batch(lengths=(0, 0)),
    "no_sequences": Batch(lengths=()),
}


def share(values: Any, rank: int, num_ranks: int) -> Any:
    """Returns the sequences that a rank brings: few or none on the first ranks, many on the last."""
    if values is None:
        return None
    begin, end = (len(values) * each**2 // num_ranks**2 for each in (rank, rank + 1))
    return values[begin:end]


def plan_of(context: ContextParallel, batch: Batch, rank: int) -> ContextPlan:
    """Plans a batch of which each rank brings some sequences."""
    size = context.num_ranks
    return context.plan(
        share(list(batch.lengths), rank, size),
        num_targets=share(batch.num_targets, rank, size),
        num_contextual=share(batch.num_contextual, rank, size),
    )


def times_of(batch: Batch, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns the times of all tokens as keys and as queries."""
    steps = torch.randint(0, 50, (batch.num_tokens,), generator=torch.Generator().manual_seed(seed))
    times = steps.cumsum(0) + (1 << 40)  # Float32 cannot hold them: differences must be taken in int64.
    return times, next_times(times, offsets_of(batch))


def offsets_of(batch: Batch) -> Tensor:
    return torch.tensor([0, *batch.lengths]).cumsum(0)


def dropout_keys_of(batch: Batch) -> Tensor:
    """Returns the dropout keys of all tokens."""
    described = batch.group_batch()
    samples, places = torch.from_numpy(described.sequence_of_tokens), torch.from_numpy(described.places)
    return token_keys(torch.arange(len(batch.lengths)) + 7, samples, places, seed=3, step=5)


def whole_sequences(batch: Batch) -> Sequences:
    """Returns the sequences of a batch that one rank has alone."""
    times, query_times = times_of(batch)

    def counts(values: list[int] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.int32)

    return Sequences(
        offsets=offsets_of(batch),
        max_length=max(batch.lengths, default=0),
        num_contextual=counts(batch.num_contextual),
        num_targets=counts(batch.num_targets),
        times=times,
        query_times=query_times,
        dropout_keys=dropout_keys_of(batch),
    )


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def stack_of(config: HSTUConfig, *, num_layers: int = 2, dtype: torch.dtype = torch.float64) -> HSTUStack:
    """Makes a stack whose weights are the same on all ranks."""
    stack = HSTUStack(HSTUStackConfig(layer=config, num_layers=num_layers)).to(dtype)
    with torch.no_grad():
        for index, parameter in enumerate(stack.parameters()):
            parameter.copy_(random(*parameter.shape, seed=100 + index, dtype=dtype) * 0.5)
    return stack


@contextmanager
def bytes_sent(rank: int) -> Iterator[list[int]]:
    """Collects the bytes that each all-to-all sends to other ranks."""
    sent: list[int] = []
    exchange = dist.all_to_all_single

    def counted(out: Tensor, rows: Tensor, received: list[int], splits: list[int], **options: Any) -> Any:
        elements = rows[0].numel() if len(rows) else 0
        sent.append((sum(splits) - splits[rank]) * elements * rows.element_size())
        return exchange(out, rows, received, splits, **options)

    with mock.patch.object(dist, "all_to_all_single", counted):
        yield sent
