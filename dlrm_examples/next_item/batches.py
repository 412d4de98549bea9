# SPDX-License-Identifier: Apache-2.0
"""Jagged batches of histories: windows for training, and the most recent items for evaluation.

Idea: a training pass cuts the history of each user into windows of at most ``max_length`` items. Each token predicts
its next item. The first cut is drawn anew in each pass, so that windows begin at different items.

Example: a history of items 0 to 9, max_length = 4. Items 8 (validation) and 9 (test) are never training targets, so
tokens 0 to 6 predict items 1 to 7. With the first cut after item 1, the windows are [0, 1], [2, 3, 4, 5] and [6].

Invariants: in each pass every training pair (item, next item) is in exactly one window. Order and cuts depend only on
    the generator.
Complexity: O(users + tokens) per pass.

Shapes: B sequences, T tokens of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from headway.nn import Sequences, next_times
from headway.parallel.context_parallel import ContextPlan
from torch import Tensor

from dlrm_examples.next_item.histories import Histories

Split = Literal["validation", "test"]
_FROM_END: dict[Split, int] = {"validation": 2, "test": 1}
"""Position of each split's target item, counted from the end of a history."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of sequences, with the next item of each token.

    Attributes:
        items: (T,) int64.
        next_items: (T,) int64, the item after each token.
        sequences: offsets and times. The query time of a token is the time of its next item. This leaks nothing: a
            recommender knows the time at which it is asked.
        positions: (T,) int64, index of each token in its sequence.
        users: (B,) int64, user of each sequence.
        parallel: division of the batch among ranks; then there are only the tokens that this rank owns, and
            ``sequences`` are those of all ranks. None: this rank has the batch alone.
    """

    items: Tensor
    next_items: Tensor
    sequences: Sequences
    positions: Tensor
    users: Tensor
    parallel: ContextPlan | None = None

    def last_tokens(self) -> Tensor:
        """(B,) int64: index of the last token of each sequence. No sequence may be empty."""
        return self.sequences.offsets[1:] - 1


def training_batches(
    histories: Histories, *, max_length: int, batch_size: int, device: torch.device, generator: torch.Generator
) -> Iterator[Batch]:
    """Yields the batches of one pass. The last two items of a user are never targets.

    Args:
        histories: histories of all users.
        max_length: most items of a window.
        batch_size: windows of a batch; the last batch may have fewer.
        device: where batches are copied to; histories stay where they are.
        generator: random generator for cuts and order.
    """
    users, begins, ends = [], [], []
    for user in range(histories.num_users):
        first, last = int(histories.offsets[user]), int(histories.offsets[user + 1]) - 3
        cut = int(torch.randint(max_length, (), generator=generator))
        edges = [first, *range(first + 1 + cut, last, max_length), last]
        for begin, end in pairwise(edges):
            if begin < end:
                users.append(user)
                begins.append(begin)
                ends.append(end)
    order = torch.randperm(len(users), generator=generator)
    windows = torch.tensor([users, begins, ends]).T[order]
    for of_batch in windows.split(batch_size):
        yield _batch(histories, *of_batch.T, device)


def evaluation_batches(
    histories: Histories, split: Split, *, max_length: int, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """Yields for each user the last ``max_length`` items before the item of ``split``, which is the last next item."""
    ends = histories.offsets[1:] - _FROM_END[split]
    begins = torch.maximum(histories.offsets[:-1], ends - max_length)
    users = torch.arange(histories.num_users)
    for of_batch in torch.stack([users, begins, ends], dim=1).split(batch_size):
        yield _batch(histories, *of_batch.T, device)


def _batch(histories: Histories, users: Tensor, begins: Tensor, ends: Tensor, device: torch.device) -> Batch:
    """Builds a batch: sequence b has the items ``begins[b]`` to ``ends[b] - 1``, whose next items are one further."""
    lengths = ends - begins
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    positions = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(lengths)
    indices = positions + begins.repeat_interleave(lengths)
    times = histories.times[indices]
    return Batch(
        items=histories.items[indices].to(device),
        next_items=histories.items[indices + 1].to(device),
        sequences=Sequences(
            offsets=offsets.to(device),
            max_length=int(lengths.max()),
            times=times.to(device),
            query_times=next_times(times, offsets, histories.times[ends]).to(device),
        ),
        positions=positions.to(device),
        users=users.to(device),
    )
