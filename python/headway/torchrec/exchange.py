# SPDX-License-Identifier: Apache-2.0
"""A batch of ids between TorchRec's calls: a lookup of ``headway::embedding::ShardedTable``, stage by stage.

Idea: TorchRec's pipelines start and wait in different places, so each stage of a lookup starts in one awaitable or
autograd function and ends in another. embedding/src/exchange/sharded_table.cpp explains the lookup itself.

============ ======================================== ==================================
stage        starts in                                ends in
============ ======================================== ==================================
key counts   ``IdDist.forward()``                     ``CountsAwaitable.wait()``
keys         ``CountsAwaitable.wait()``               ``DynamicLookup.forward()``
embeddings   ``SendEmbeddings.forward()``             ``ReceiveEmbeddings.forward()``
gradients    ``ReceiveEmbeddings.backward()``         ``SendEmbeddings.backward()``, which updates the rows
============ ======================================== ==================================

Example: rank 0 needs id 7, which rank 1 owns. Rank 1 sends e7 in ``SendEmbeddings.forward()``; rank 0 expands it to its
bags in ``ReceiveEmbeddings.forward()``. Backward, rank 0 sends the sum of its gradients of 7. Rank 1 updates the row.

Invariants: all ranks start all stages in the same order, even with nothing to send. A token, an empty tensor between
``SendEmbeddings`` and ``ReceiveEmbeddings``, makes autograd run their backward passes in the reverse order.
Each backward pass is one update of each table. The memory of a batch outlives all streams that used it.
Complexity: 3 all-to-alls forward and 1 backward.

Words: a key is the pair (table id, id). A merged table stores the keys of several tables of equal configuration
(headway/embedding/merging.py). An output is a tensor of the lookup: one per feature for sequences, one per merged table
for bags.

Shapes: G merged tables, B rows of an output (ids of a sequence, or bags), D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.types import Awaitable, NoWait

from headway._embedding import LookupBatch, TableLookup
from headway.torchrec.kernel import TableKernel


class Batch:
    """A batch of ids. It lives from the exchange of ids until the rows of this rank are updated.

    Args:
        lookup: the lookup in all merged tables.
        begun: the state of this batch in ``lookup``, from ``lookup.begin()``.
        kernels: the shard of each merged table.
    """

    def __init__(self, lookup: TableLookup, begun: LookupBatch, kernels: Sequence[TableKernel]) -> None:
        self.lookup, self.begun, self.kernels = lookup, begun, kernels

    def take_embeddings(self) -> tuple[torch.Tensor, ...]:
        """Returns the embeddings of each output, (B, D)."""
        return tuple(self.lookup.take_embeddings(self.begun))

    def start_gradients(self, gradients: Sequence[torch.Tensor], *, scale: float = 1.0) -> None:
        """Reduces the gradients of the outputs, (B, D) each, multiplies them by ``scale``, and starts to send them."""
        self.lookup.start_gradients(self.begun, gradients, factor=scale)

    def update(self) -> None:
        """Updates the rows of this rank by the gradients of all ranks."""
        for kernel in self.kernels:
            kernel.updates += 1
        self.lookup.update(
            self.begun,
            steps=[kernel.updates for kernel in self.kernels],
            rates=[kernel.learning_rate for kernel in self.kernels],
        )
        for kernel in self.kernels:
            kernel.begin_step()


class RequestedKeys(KeyedJaggedTensor):  # type: ignore[misc]
    """The keys that all ranks ask this rank for. To TorchRec it is a ``KeyedJaggedTensor`` without ids.

    Args:
        batch: this rank's own batch, which has the keys.
        zeros: (G,) int64, the lengths of the empty ``KeyedJaggedTensor``.
    """

    def __init__(self, batch: Batch, zeros: torch.Tensor) -> None:
        sizes = [0] * len(batch.kernels)
        names = [f"group_{index}" for index in range(len(sizes))]
        super().__init__(names, zeros[:0], lengths=zeros, stride=1, length_per_key=sizes)
        self.batch = batch


class NestedAwaitable(Awaitable):  # type: ignore[misc]
    """An awaitable that is waited for inside the wait of another one. It adds no profiler range of its own."""

    def wait(self) -> Any:
        result = self._wait_impl()
        for callback in self.callbacks:
            result = callback(result)
        return result


class ReadyAwaitable(NestedAwaitable, NoWait):  # type: ignore[misc]
    """``NoWait`` without a profiler range of its own."""


class CountsAwaitable(NestedAwaitable):
    """Waits for the key counts of a batch, starts the exchange of keys, and returns an awaitable of ``RequestedKeys``.

    It replaces the awaitable of TorchRec's ``KJTAllToAll``, whose host must know the counts to send when it starts.
    """

    def __init__(self, batch: Batch, zeros: torch.Tensor) -> None:
        super().__init__()
        self.batch, self._zeros = batch, zeros

    def _wait_impl(self) -> ReadyAwaitable:
        self.batch.lookup.start_keys(self.batch.begun)
        return ReadyAwaitable(RequestedKeys(self.batch, self._zeros))


class LocalKeysAwaitable(ReadyAwaitable):
    """Counterpart of ``CountsAwaitable`` with one rank, where no exchange is needed."""

    def __init__(self, batch: Batch, zeros: torch.Tensor) -> None:
        super().__init__(ReadyAwaitable(RequestedKeys(batch, zeros)))
        self.batch = batch


class SendEmbeddings(torch.autograd.Function):
    """Owner side: sends embeddings in forward, receives gradients and updates rows in backward.

    Returns a token for ``ReceiveEmbeddings``. Tokens are empty; they make autograd call ``backward()``.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch) -> torch.Tensor:
        ctx.batch = batch
        batch.lookup.start_embeddings(batch.begun)
        return token.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, token: torch.Tensor) -> tuple[None, None]:
        _expect_retained(ctx)
        ctx.batch.update()
        return None, None


class ReceiveEmbeddings(torch.autograd.Function):
    """Requester side: receives embeddings and expands them in forward, reduces and sends gradients in backward.

    Returns (B, D) for each output of the batch. Gradients are multiplied by ``scale``: 1 / ranks if
    TorchRec divides gradients, else 1.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch, scale: float) -> tuple[torch.Tensor, ...]:
        ctx.batch, ctx.scale = batch, scale
        return batch.take_embeddings()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        _expect_retained(ctx)
        ctx.batch.start_gradients(gradients, scale=ctx.scale)
        return gradients[0].new_empty(0), None, None


class ExpandRows(torch.autograd.Function):
    """Both sides in one with one rank, where nothing is sent. Returns (B, D) for each output of the batch."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, ...]:
        ctx.batch = batch
        return batch.take_embeddings()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        _expect_retained(ctx)
        ctx.batch.start_gradients(gradients)
        ctx.batch.update()
        return None, None


def _expect_retained(ctx: Any) -> None:
    """Raises torch's RuntimeError in a second backward pass over a graph that was not retained."""
    _ = ctx.saved_tensors


def join(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """``torch.cat``, or the tensor itself if there is only one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
