"""The exchange of vectors between their owners and those that asked for them, and of gradients the other way.

G groups of merged tables, R ranks, U unique keys of this rank, V keys that it was asked for, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from headway.embedding.rank_pieces import by_group, by_rank, splits
from headway.torchrec.batch import Batch


class VectorExchange:
    """What one batch sends and receives; a call of ``start()``, then one of ``wait()``, for each direction.

    Args:
        batch: whose keys were exchanged already.
        widths_G: columns of each group's vectors.
        group: whose ranks take part, all of them in the same order of batches.
    """

    def __init__(self, batch: Batch, widths_G: Sequence[int], group: dist.ProcessGroup) -> None:
        self.batch, self.widths_G = batch, list(widths_G)
        self._group = group
        self._work: dist.Work | None = None
        self._tensors: list[torch.Tensor] = []  # What is received, and what is sent until wait().

    def start(self, sent: torch.Tensor, sent_GR: Sequence[Sequence[int]], received_GR: Sequence[Sequence[int]]) -> None:
        if self._group.size() == 1:
            self._tensors = [sent]
            return
        send_splits, receive_splits = splits(sent_GR, self.widths_G), splits(received_GR, self.widths_G)
        received = sent.new_empty(sum(receive_splits))
        self._tensors = [received, sent]
        self._work = dist.all_to_all_single(
            received, sent, receive_splits, send_splits, group=self._group, async_op=True
        )

    def wait(self) -> torch.Tensor:
        """Returns what has arrived, flat and rank by rank."""
        if self._work is not None:
            self._work.wait()
        received = self._tensors[0]
        self._work, self._tensors = None, []
        return received


class SendVectors(torch.autograd.Function):
    """Starts to send an owner's vectors, flat and group by group; gives a token for ``ReceiveVectors``."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, exchange: VectorExchange) -> torch.Tensor:
        ctx.exchange = exchange
        received_GR, widths_G = exchange.batch.received_GR, exchange.widths_G
        sizes = [sum(counts) * width for counts, width in zip(received_GR, widths_G, strict=True)]
        flat_G = torch.split(vectors, sizes)
        values_G = [flat.view(-1, width) for flat, width in zip(flat_G, widths_G, strict=True)]
        exchange.start(by_rank(values_G, received_GR), received_GR, exchange.batch.counts_GR)
        return vectors.new_zeros(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, token: torch.Tensor) -> tuple[torch.Tensor, None]:
        exchange: VectorExchange = ctx.exchange
        values_G = by_group(exchange.wait(), exchange.batch.received_GR, exchange.widths_G)
        return torch.cat([values.reshape(-1) for values in values_G]), None


class ReceiveVectors(torch.autograd.Function):
    """Hands the vectors out that have arrived: for each group (bags, D), where each id may be a bag of its own."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: VectorExchange, scale: float) -> tuple[torch.Tensor, ...]:
        ctx.exchange, ctx.scale = exchange, scale
        batch = exchange.batch
        routed_G = by_group(exchange.wait(), batch.counts_GR, exchange.widths_G)
        return tuple(batch.hand_out(number, routed_UD) for number, routed_UD in enumerate(routed_G))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients_BD: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        exchange: VectorExchange = ctx.exchange
        batch = exchange.batch
        routed_G = [batch.add_up(number, gradients) for number, gradients in enumerate(gradients_BD)]
        exchange.start(by_rank(routed_G, batch.counts_GR) * ctx.scale, batch.counts_GR, batch.received_GR)
        return gradients_BD[0].new_zeros(1), None, None
