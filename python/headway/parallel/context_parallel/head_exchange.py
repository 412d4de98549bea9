# SPDX-License-Identifier: Apache-2.0
"""The exchanges of the heads layout: tensors of tokens to tensors of heads, and back, with gradients.

Idea: ``plan.py`` has the layout. ``to_heads()`` sends a rank's tokens of all heads and returns all tokens of its own
heads. Tensors travel side by side, token by token: the message to rank s is a matrix of (own tokens, columns of the
heads of s in all tensors). Received matrices lie one below the other, so each tensor is a strided view of what arrived.
Kernels take such views, so nothing is copied after the exchange.

Example: H = 4, D = V = 2, U = 2. The message to rank 1 has 12 columns: q of heads 2 and 3, then k, then v.

Invariants: the gradient of one function is the other, so gradients travel once. Splits come from the plan alone.
Complexity: one all-to-all; one copy of what is sent (``to_heads``), or of what is sent and received (``to_tokens``).

Shapes: t own tokens, T tokens of all ranks, H heads, h own heads, C columns of a tensor per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.parallel.context_parallel.plan import HeadsPlan, Splits
from headway.parallel.context_parallel.row_move import all_to_all_rows


class HeadExchange:
    """Exchanges of one layer. It has the interface of ``headway.nn.attention.AttentionExchange``.

    Args:
        plan: division of tokens and heads.
        rank: this rank's index in the plan.
        group: the ranks of the plan, or ranks among which they are; None: this rank alone.
        members: ranks of the group that the plan is for, in its order; None: all.
    """

    def __init__(
        self, plan: HeadsPlan, rank: int, group: dist.ProcessGroup | None, members: Sequence[int] | None = None
    ) -> None:
        self.plan, self.rank, self._group, self._members = plan, rank, group, members

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of the rank's heads, (T, h, C), for those of its tokens, (t, H, C)."""
        q, k, v = self.to_heads(q, k, v)
        return q, k, v

    def inputs_backward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of the rank's tokens for those of its heads."""
        q, k, v = self.to_tokens(q, k, v)
        return q, k, v

    def output(self, out: Tensor) -> Tensor:
        """Returns the attention output of the rank's tokens, (t, H, C), for that of its heads, (T, h, C)."""
        return self.to_tokens(out)[0]

    def output_backward(self, grad: Tensor) -> Tensor:
        """Returns the gradient of the output of the rank's heads for that of its tokens."""
        return self.to_heads(grad)[0]

    def exchange(self, elements: Tensor, splits: Splits) -> Tensor:
        """Exchanges elements among the members of the plan."""
        if self._members is not None and self._group is not None:
            splits = splits.among(self._members, self._group.size())
        return all_to_all_rows(elements, splits, self._group)

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Exchanges (t, H, C) for (T, h, C): views of one buffer. The tensors have one dtype."""
        return tensors if self.plan.num_ranks == 1 else _ToHeads.apply(self, *tensors)

    def to_tokens(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Exchanges (T, h, C) for (t, H, C)."""
        return tensors if self.plan.num_ranks == 1 else _ToTokens.apply(self, *tensors)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: HeadExchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        plan, rank = exchange.plan, exchange.rank
        columns = [each.shape[2] for each in tensors]
        splits = plan.to_heads(rank, sum(columns))
        sent = tensors[0].new_empty(sum(splits.sent))
        for of_rank, part in enumerate(sent.split_with_sizes(list(splits.sent))):
            heads = plan.heads_of(of_rank)
            widths = [len(heads) * each for each in columns]
            parts = part.view(len(tensors[0]), sum(widths)).split_with_sizes(widths, dim=1)
            for place, each in zip(parts, tensors, strict=True):
                place.view(len(each), len(heads), each.shape[2]).copy_(each[:, heads.start : heads.stop])
        received = exchange.exchange(sent, splits)
        num_heads = len(plan.heads_of(rank))
        rows = received.view(plan.num_tokens, num_heads * sum(columns))
        parts = rows.split_with_sizes([num_heads * each for each in columns], dim=1)
        return tuple(part.view(plan.num_tokens, num_heads, each) for part, each in zip(parts, columns, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.to_tokens(*grads)


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: HeadExchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        plan, rank = exchange.plan, exchange.rank
        columns = [each.shape[2] for each in tensors]
        splits = plan.to_tokens(rank, sum(columns))
        flat = [each.flatten(1) for each in tensors]
        sent = (flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)).reshape(-1)
        received = exchange.exchange(sent, splits)
        num_tokens = len(plan.tokens_of(rank))
        outs = tuple(tensors[0].new_empty((num_tokens, plan.num_heads, each)) for each in columns)
        for of_rank, part in enumerate(received.split_with_sizes(list(splits.received))):
            heads = plan.heads_of(of_rank)
            widths = [len(heads) * each for each in columns]
            parts = part.view(num_tokens, sum(widths)).split_with_sizes(widths, dim=1)
            for place, each in zip(parts, outs, strict=True):
                each[:, heads.start : heads.stop].copy_(place.view(num_tokens, len(heads), each.shape[2]))
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.to_heads(*grads)
