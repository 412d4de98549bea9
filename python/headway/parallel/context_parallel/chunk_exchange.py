# SPDX-License-Identifier: Apache-2.0
"""The exchange of the chunks layout: keys and values to the ranks whose queries see them, with gradients.

Idea: ``chunks_plan.py`` has the layout. Received keys and values lie in rows of the whole batch, so the kernel finds a
token's keys by its place. Rows that no own query sees are zero. Queries and outputs stay where they are.

Invariants: splits come from the plan alone. Partial gradients of keys and values are in float32 (float64 for float64),
and their owner adds them in the order of ranks, so sums have the same bits in every run.
Complexity: one all-to-all; a copy of the rows that are sent, and one of those that arrive.

Shapes: t own tokens, T tokens of all ranks, H heads.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from headway.parallel.context_parallel.head_exchange import HeadExchange
from headway.parallel.context_parallel.row_move import RowMove, move_back, move_rows


class ChunkExchange:
    """Exchanges of one layer. It has the interface of ``headway.nn.attention.AttentionExchange``.

    Args:
        move: the move of keys and values.
        group: the ranks of the plan; None: this rank alone.
    """

    def __init__(self, move: RowMove, group: dist.ProcessGroup | None) -> None:
        self._move, self._group = move, group

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns own queries, (t, H, D), and keys and values in rows of all tokens, (T, H, D or V)."""
        k, v = move_rows([k, v], self._move, self._group)
        return q, k, v

    def inputs_backward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns gradients of own queries, keys and values for partial ones of all tokens."""
        of_k, of_v = move_back([k, v], self._move, self._group)
        return q, of_k.to(q.dtype), of_v.to(q.dtype)

    def output(self, out: Tensor) -> Tensor:
        """Returns the attention output of own tokens, which this rank computed."""
        return out

    def output_backward(self, grad: Tensor) -> Tensor:
        """Returns the gradient of the output as it is."""
        return grad


class GridExchange:
    """Exchanges of one layer in the grid layout (``grid_plan.py``): heads inside a group, then chunks between groups.

    Args:
        heads: exchange inside the group of this rank.
        chunks: exchange with the ranks of other groups that have the same heads.
    """

    def __init__(self, heads: HeadExchange, chunks: ChunkExchange) -> None:
        self._heads, self._chunks = heads, chunks

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries of the group's tokens, and keys and values in rows of all tokens, for the rank's heads."""
        q, k, v = self._heads.inputs(q, k, v)
        # A copy: the view would keep the memory of keys and values alive, which move on.
        return self._chunks.inputs(q.clone(memory_format=torch.contiguous_format), k, v)

    def inputs_backward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of own tokens."""
        return self._heads.inputs_backward(*self._chunks.inputs_backward(q, k, v))

    def output(self, out: Tensor) -> Tensor:
        """Returns the attention output of own tokens, for all heads."""
        return self._heads.output(out)

    def output_backward(self, grad: Tensor) -> Tensor:
        """Returns the gradient of the output of the group's tokens, for the rank's heads."""
        return self._heads.output_backward(grad)
