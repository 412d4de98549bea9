"""Jagged batches of histories: windows to train on, and the last items before the one asked for.

Shapes: B sequences, T tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from headway.nn import Sequences, next_times
from torch import Tensor

from dlrm_examples.next_item.histories import Histories

Part = Literal["validation", "test"]
_BEHIND: dict[Part, int] = {"validation": 2, "test": 1}
"""Where the item asked for is from the end of a history."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of items, and what came after each.

    Attributes:
        items: (T,) int64.
        next_items: (T,) int64.
        sequences: a token asks at the time of its next item, which whoever recommends knows: it is now.
        positions: (T,) int64, of tokens in their sequence.
        users: (B,) int64.
    """

    items: Tensor
    next_items: Tensor
    sequences: Sequences
    positions: Tensor
    users: Tensor

    def last_tokens(self) -> Tensor:
        """(B,) int64: places of the last token of each sequence, none of which is empty."""
        return self.sequences.offsets[1:] - 1


def training_batches(
    histories: Histories, *, max_length: int, batch_size: int, device: torch.device, generator: torch.Generator
) -> Iterator[Batch]:
    """One pass: each pair of an item and the next one, but for the last two items of a user, is in one window.

    Args:
        histories: of all users.
        max_length: items of a window. Long histories are cut at places that differ from pass to pass.
        batch_size: windows of a batch; the last one may have fewer.
        device: of the batches.
        generator: of cuts and order.
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
    histories: Histories, part: Part, *, max_length: int, batch_size: int, device: torch.device
) -> Iterator[Batch]:
    """For each user the last ``max_length`` items before the one of the part; the last next item is that one."""
    ends = histories.offsets[1:] - _BEHIND[part]
    begins = torch.maximum(histories.offsets[:-1], ends - max_length)
    users = torch.arange(histories.num_users)
    for of_batch in torch.stack([users, begins, ends], dim=1).split(batch_size):
        yield _batch(histories, *of_batch.T, device)


def _batch(histories: Histories, users: Tensor, begins: Tensor, ends: Tensor, device: torch.device) -> Batch:
    """Of ratings ``begins[b]`` to ``ends[b]`` and those one further."""
    lengths = ends - begins
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    positions = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(lengths)
    places = positions + begins.repeat_interleave(lengths)
    times = histories.times[places]
    return Batch(
        items=histories.items[places].to(device),
        next_items=histories.items[places + 1].to(device),
        sequences=Sequences(
            offsets=offsets.to(device),
            max_length=int(lengths.max()),
            times=times.to(device),
            query_times=next_times(times, offsets, histories.times[ends]).to(device),
        ),
        positions=positions.to(device),
        users=users.to(device),
    )
