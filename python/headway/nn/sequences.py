# SPDX-License-Identifier: Apache-2.0
"""The sequences of a jagged batch: offsets, masks and times of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """B sequences with T tokens in all, stored one after the other. Tensors are on the device of the tokens.

    Attributes:
        offsets: (B + 1,) int64: sequence b has the tokens from ``offsets[b]`` to before ``offsets[b + 1]``. Tokens
            after the last offset (a batch padded to a fixed size) are of no sequence; their attention output is zero.
        max_length: upper bound of tokens per sequence, including cached tokens.
        num_contextual: (B,) int32, number of leading tokens that attend to each other and the whole history.
        num_targets: (B,) int32, number of trailing tokens that attend only to the history and themselves.
        times: (T,) int64, time of each token as a key.
        query_times: (T,) int64, time at which each token asks, as a query; see :func:`headway.nn.next_times`.
        dropout_keys: (T,) int64 of :func:`headway.nn.token_keys`: dropout then depends on them alone. None: masks are
            drawn by torch's generator. With context parallelism they are those of the rank's own tokens.
        key_offsets: (B + 1,) int64, if queries and keys have different rows. Then ``offsets`` are those of queries,
            and ``times`` are those of keys. None: ``offsets``.
        query_runs: (B, 3, 2) int32: the queries are runs of tokens; see :func:`headway.ops.hstu_attention`.
    """

    offsets: Tensor
    max_length: int
    num_contextual: Tensor | None = None
    num_targets: Tensor | None = None
    times: Tensor | None = None
    query_times: Tensor | None = None
    dropout_keys: Tensor | None = None
    key_offsets: Tensor | None = None
    query_runs: Tensor | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Returns the tensors of the attention, in the order of the attributes; None for those that are not set."""
        of_queries = (self.offsets, self.num_contextual, self.num_targets, self.times, self.query_times)
        return *of_queries, self.key_offsets, self.query_runs


def offsets_of(lengths: Tensor) -> Tensor:
    """Returns the offsets of sequences with these lengths, (B + 1,)."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def sequence_of_tokens(offsets: Tensor, num_tokens: int) -> Tensor:
    """Returns the sequence of each token, (T,) int64; B for tokens after the last offset."""
    tokens = torch.arange(num_tokens, device=offsets.device)
    # Not by offsets[1:]: Inductor compiles no search in a slice for GPUs (PyTorch 2.11).
    return torch.searchsorted(offsets, tokens, right=True) - 1
