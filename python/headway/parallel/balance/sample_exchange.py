# SPDX-License-Identifier: Apache-2.0
"""``SampleExchange``: the collectives of balancing, on tensors in host memory. One thread calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class BalanceError(RuntimeError):
    """Another rank cannot read its samples, or ranks disagree."""


class SampleExchange:
    """Exchanges of descriptions and samples.

    Args:
        group: ranks of the training, for CPU tensors. Nothing else uses it meanwhile. None: this rank alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = None if group is None or group.size() == 1 else group
        self.rank = 0 if self._group is None else self._group.rank()
        self.num_ranks = 1 if self._group is None else self._group.size()

    def expect_same(self, settings: Any) -> None:
        """Checks that all ranks have the same settings, which are compared by ``repr()``.

        Raises:
            BalanceError: they differ; the message has both.
        """
        if self._group is None:
            return
        found: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(found, repr(settings), group=self._group)
        for rank, each in enumerate(found):
            if each != found[0]:
                raise BalanceError(f"ranks balance differently: rank 0 has {found[0]}, and rank {rank} has {each}")

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Gathers (K,) int64 of each rank; returns (R, K)."""
        if self._group is None:
            return values[None]
        gathered = values.new_empty((self.num_ranks, *values.shape))
        dist.all_gather(list(gathered.unbind(0)), values, group=self._group)
        return gathered

    def all_gather_rows(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Gathers rows (n, K) int64 of each rank, in the order of ranks.

        Args:
            rows: of this rank.
            counts: number of rows of each rank.
        """
        if self._group is None:
            return rows
        padded = torch.cat([rows, rows.new_zeros((max(counts) - len(rows), *rows.shape[1:]))])
        gathered = self.all_gather(padded)
        return torch.cat([of_rank[:count] for of_rank, count in zip(gathered, counts, strict=True)])

    def all_to_all(self, words: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Sends consecutive parts of ``words`` to the ranks, and returns the parts for this rank, by source.

        Args:
            words: int64.
            sent, received: words to and from each rank.
        """
        if self._group is None:
            return words
        out = words.new_empty(sum(received))
        dist.all_to_all_single(out, words, list(received), list(sent), group=self._group)
        return out
