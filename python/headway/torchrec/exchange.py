# SPDX-License-Identifier: Apache-2.0
"""Exchanges of a batch: key counts, keys, embeddings from owners, and gradients to owners.

Idea: each exchange is one all-to-all for all merged tables. TorchRec's pipelines start and wait in different
places, so each exchange is an awaitable or an autograd function that starts in one call and ends in another:

============ ======================================== ==================================
exchange     starts in                                ends in
============ ======================================== ==================================
key counts   ``BatchMaker.make()``                    ``CountsAwaitable.wait()``
keys         ``CountsAwaitable.wait()``               ``IdsAwaitable.wait()``
embeddings   ``SendEmbeddings.forward()``             ``ReceiveEmbeddings.forward()``
gradients    ``ReceiveEmbeddings.backward()``         ``SendEmbeddings.backward()``, which updates the rows
============ ======================================== ==================================

Example: rank 0 needs id 7, which rank 1 owns. Rank 1 sends e7 in ``SendEmbeddings.forward()``; rank 0 expands it to its
bags in ``ReceiveEmbeddings.forward()``. Backward, rank 0 sends the sum of its gradients of 7. Rank 1 updates the row.

Invariants: all ranks start all exchanges in the same order, even with nothing to send.
Tensors that are being sent belong to the exchange until wait(). A token, an empty tensor between ``SendEmbeddings`` and
``ReceiveEmbeddings``, makes autograd run their backward passes in the reverse order.
Complexity: 3 all-to-alls forward and 1 backward; 16 bytes per unique key, and D float32 per unique key each way.

G merged tables, R ranks, U unique keys of this rank, V keys that it was asked for, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.types import Awaitable, NoWait

from headway._embedding import all_to_all_arguments, by_table
from headway.torchrec.batch import Batch, RequestedKeys


class RowExchange:
    """All-to-all of the rows of all merged tables. Call ``start()``, then ``wait()``; an object may be reused.

    On CUDA neither call waits for the device.

    Args:
        widths_G: columns of the rows of each merged table.
        group: the ranks, at least two. All of them make their exchanges in the same order.
    """

    def __init__(self, widths_G: Sequence[int], group: dist.ProcessGroup) -> None:
        self.widths_G = list(widths_G)
        self.num_ranks = group.size()
        self._group = group
        self._work: dist.Work | None = None
        self._tensors: list[torch.Tensor] = []  # Receive and send buffer between start() and wait().
        self._received_GR = torch.empty(0, dtype=torch.int64)

    def start(self, rows_G: Sequence[torch.Tensor], sent_GR: torch.Tensor, received_GR: torch.Tensor) -> None:
        """Starts sending ``rows_G``, which are sorted by destination; the counts are (G, R) int64 on the CPU, rows."""
        arguments = all_to_all_arguments(rows_G, sent_GR, received_GR)
        self._tensors, self._received_GR = list(arguments[:2]), received_GR
        self._work = dist.all_to_all_single(*arguments, group=self._group, async_op=True)

    def wait(self) -> list[torch.Tensor]:
        """Returns the received rows of each merged table, rank by rank."""
        assert self._work is not None, "start() comes first"
        self._work.wait()
        (received, sent), self._tensors, self._work = self._tensors, [], None
        if received.is_cuda:
            stream = torch.cuda.current_stream(received.device)
            received.record_stream(stream)  # The results may be views of it.
            sent.record_stream(stream)  # wait() may run on another stream than start(), and orders only that one.
        return by_table(received, self._received_GR, self.widths_G)


class NestedAwaitable(Awaitable):  # type: ignore[misc]
    """An awaitable that is waited for inside the wait of another one. It adds no profiler range of its own."""

    def wait(self) -> Any:
        result = self._wait_impl()
        for callback in self.callbacks:
            result = callback(result)
        return result


# Ids


class CountsAwaitable(NestedAwaitable):
    """Waits for the key counts of a batch, starts the exchange of keys, and returns its ``IdsAwaitable``.

    It replaces the awaitable of TorchRec's ``KJTAllToAll``, whose host must know the counts to send when it starts.
    """

    def __init__(self, batch: Batch, group: dist.ProcessGroup, nothing: torch.Tensor) -> None:
        super().__init__()
        self.batch, self._group, self._nothing = batch, group, nothing

    def _wait_impl(self) -> IdsAwaitable:
        batch = self.batch
        batch.take_counts()
        exchange = RowExchange([2] * len(batch.table_batches), self._group)
        exchange.start(batch.messages(), batch.sent_GR, batch.received_GR)
        return IdsAwaitable(batch, exchange, self._nothing)


class IdsAwaitable(NestedAwaitable):
    """Waits for the keys that this rank is asked for, and returns ``RequestedKeys``, the input of ``DynamicLookup``."""

    def __init__(self, batch: Batch, exchange: RowExchange, nothing: torch.Tensor) -> None:
        super().__init__()
        self._batch, self._exchange, self._nothing = batch, exchange, nothing

    def _wait_impl(self) -> RequestedKeys:
        return RequestedKeys(self._batch, self._exchange.wait(), self._nothing)


class ReadyAwaitable(NestedAwaitable, NoWait):  # type: ignore[misc]
    """``NoWait`` without a profiler range of its own."""


class LocalKeysAwaitable(ReadyAwaitable):
    """Counterpart of ``CountsAwaitable`` with one rank, where no exchange is needed."""

    def __init__(self, batch: Batch, nothing: torch.Tensor) -> None:
        super().__init__(ReadyAwaitable(RequestedKeys(batch, None, nothing)))
        self.batch = batch


# Embeddings and gradients


class EmbeddingExchange(RowExchange):
    """Exchanges of embeddings and gradients of one batch, after the exchange of its ids."""

    def __init__(self, batch: Batch, widths_G: Sequence[int], group: dist.ProcessGroup) -> None:
        super().__init__(widths_G, group)
        self.batch = batch


class SendEmbeddings(torch.autograd.Function):
    """Owner side: sends embeddings in forward, receives gradients and updates rows in backward.

    Returns a token for ``ReceiveEmbeddings``. Tokens are empty; they make autograd call ``backward()``.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: EmbeddingExchange) -> torch.Tensor:
        ctx.exchange = exchange
        batch = exchange.batch
        exchange.start(
            [table_batch.found().expand() for table_batch in batch.table_batches], batch.received_GR, batch.sent_GR
        )
        return token.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, token: torch.Tensor) -> tuple[None, None]:
        exchange: EmbeddingExchange = ctx.exchange
        for table_batch, gradients_VD in zip(exchange.batch.table_batches, exchange.wait(), strict=True):
            table_batch.found().apply_gradients(gradients_VD)
        return None, None


class ReceiveEmbeddings(torch.autograd.Function):
    """Requester side: receives embeddings and expands them in forward, reduces and sends gradients in backward.

    Returns (B, D) for each output of the batch. Gradients are multiplied by ``scale``.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, exchange: EmbeddingExchange, scale: float) -> tuple[torch.Tensor, ...]:
        ctx.exchange, ctx.scale = exchange, scale
        batch = exchange.batch
        return tuple(
            embeddings_BD
            for index, embeddings_UD in enumerate(exchange.wait())
            for embeddings_BD in batch.table_batches[index].split(batch.expand(index, embeddings_UD))
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        exchange: EmbeddingExchange = ctx.exchange
        batch = exchange.batch
        sums_G = [
            batch.reduce(index, gradients_BD, scale=ctx.scale)
            for index, gradients_BD in enumerate(batch.join(gradients))
        ]
        exchange.start(sums_G, batch.sent_GR, batch.received_GR)
        return gradients[0].new_empty(0), None, None


def join(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.cat``, or the tensor itself if there is only one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
