"""Exchanges of ids, of vectors between their owners and those that asked for them, and of gradients the other way.

G groups of merged tables, R ranks, U unique keys of this rank, V keys that it was asked for, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.types import Awaitable, NoWait

from headway.embedding.rank_pieces import all_to_all_arguments, by_group
from headway.torchrec.batch import AskedKeys, Batch


class RowExchange:
    """Rows of each group, rank by rank, on their way to other ranks: ``start()``, then ``wait()``, as often as wanted.

    On CUDA neither waits for the device.

    Args:
        widths_G: columns of each group's rows.
        group: whose ranks take part, several of them, all in the same order of exchanges.
    """

    def __init__(self, widths_G: Sequence[int], group: dist.ProcessGroup) -> None:
        self.widths_G = list(widths_G)
        self.num_ranks = group.size()
        self._group = group
        self._work: dist.Work | None = None
        self._tensors: list[torch.Tensor] = []  # What is received, and what is sent until wait().
        self._received_GR: Sequence[Sequence[int]] = []

    def start(
        self, rows_G: Sequence[torch.Tensor], sent_GR: Sequence[Sequence[int]], received_GR: Sequence[Sequence[int]]
    ) -> None:
        arguments = all_to_all_arguments(rows_G, sent_GR, received_GR, self.widths_G)
        self._tensors, self._received_GR = list(arguments[:2]), received_GR
        self._work = dist.all_to_all_single(*arguments, group=self._group, async_op=True)

    def wait(self) -> list[torch.Tensor]:
        """Returns the rows of each group that have arrived, rank by rank."""
        assert self._work is not None, "start() comes first"
        self._work.wait()
        (received, _), self._tensors, self._work = self._tensors, [], None
        if received.is_cuda:
            received.record_stream(torch.cuda.current_stream(received.device))  # What is returned may be a view of it.
        return by_group(received, self._received_GR, self.widths_G)


class InnerAwaitable(Awaitable):  # type: ignore[misc]
    """Is waited for inside the wait for another one, whose name a profile has already, and not this one's."""

    def wait(self) -> Any:
        result = self._wait_impl()
        for callback in self.callbacks:
            result = callback(result)
        return result


# Ids


class CountsAwaitable(InnerAwaitable):
    """Of a batch whose counts are on their way; gives the awaitable of the ids that this rank was asked for.

    In the place of what TorchRec's ``KJTAllToAll`` gives, which needs to know the counts when it begins.
    """

    def __init__(self, batch: Batch, group: dist.ProcessGroup, nothing: torch.Tensor) -> None:
        super().__init__()
        self.batch, self._group, self._nothing = batch, group, nothing

    def _wait_impl(self) -> IdsAwaitable:
        batch = self.batch
        batch.take_counts()
        exchange = RowExchange([2] * len(batch.parts), self._group)
        exchange.start(batch.messages(), batch.sent_GR, batch.received_GR)
        return IdsAwaitable(batch, exchange, self._nothing)


class IdsAwaitable(InnerAwaitable):
    """Gives them as ``TableLookup`` takes them."""

    def __init__(self, batch: Batch, exchange: RowExchange, nothing: torch.Tensor) -> None:
        super().__init__()
        self._batch, self._exchange, self._nothing = batch, exchange, nothing

    def _wait_impl(self) -> AskedKeys:
        return AskedKeys(self._batch, self._exchange.wait(), self._nothing)


class Here(InnerAwaitable, NoWait):  # type: ignore[misc]
    """Gives what is there already."""


class OwnKeysAwaitable(Here):
    """Of a batch whose keys stay with the only rank; gives an awaitable of them, as if they had travelled."""

    def __init__(self, batch: Batch, nothing: torch.Tensor) -> None:
        super().__init__(Here(AskedKeys(batch, None, nothing)))
        self.batch = batch


# Vectors and gradients


class VectorExchange(RowExchange):
    """Of one batch, whose ids were exchanged already."""

    def __init__(self, batch: Batch, widths_G: Sequence[int], group: dist.ProcessGroup) -> None:
        super().__init__(widths_G, group)
        self.batch = batch


class SendVectors(torch.autograd.Function):
    """Starts to send an owner's vectors, whose rows are found; gives a token for ``ReceiveVectors``.

    Tokens have no values: they make autograd call us.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: VectorExchange) -> torch.Tensor:
        ctx.exchange = exchange
        batch = exchange.batch
        exchange.start([part.found().hand_out() for part in batch.parts], batch.received_GR, batch.sent_GR)
        return token.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, token: torch.Tensor) -> tuple[None, None]:
        exchange: VectorExchange = ctx.exchange
        for part, gradients_VD in zip(exchange.batch.parts, exchange.wait(), strict=True):
            part.found().learn(gradients_VD)
        return None, None


class ReceiveVectors(torch.autograd.Function):
    """Hands the vectors out that have arrived: (B, D) for each output of the batch's parts."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: VectorExchange, scale: float) -> tuple[torch.Tensor, ...]:
        ctx.exchange, ctx.scale = exchange, scale
        batch = exchange.batch
        return tuple(
            vectors_BD
            for number, vectors_UD in enumerate(exchange.wait())
            for vectors_BD in batch.parts[number].split(batch.hand_out(number, vectors_UD))
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        exchange: VectorExchange = ctx.exchange
        batch = exchange.batch
        sums_G = [
            batch.add_up(number, gradients_BD, scale=ctx.scale)
            for number, gradients_BD in enumerate(batch.join(gradients))
        ]
        exchange.start(sums_G, batch.sent_GR, batch.received_GR)
        return gradients[0].new_empty(0), None, None


def join(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.cat`` that copies nothing if there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
