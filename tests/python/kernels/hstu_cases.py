# SPDX-License-Identifier: Apache-2.0
"""Batches for tests of HSTU attention. A case names the special features of its batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    """Features of a batch. ``options`` are arguments of ``headway.ops.hstu_attention``, passed on unchanged."""

    key_lengths: tuple[int, ...] = (5, 0, 1, 17, 40)  #: Tokens of each sequence.
    query_lengths: tuple[int, ...] | None = None  #: Queries are the last tokens of a sequence; None: all tokens.
    num_heads: int = 2
    dim: int = 16  #: Columns of queries and keys, per head.
    value_dim: int = 16  #: Columns of values, per head.
    contextual: int = 0  #: Leading tokens of each sequence that attend to its whole history.
    targets: int = 0  #: Trailing tokens of each sequence that attend to the history and themselves.
    has_position: bool = False  #: With a bias by the distance of query and key.
    has_time: bool = False  #: With a bias by the time between query and key, in buckets.
    longest_step: int = 50  #: The time from one token to the next is below this; 1: all times are equal.
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "causal": Case(),
    "bidirectional": Case(options={"causal": False}),
    "window": Case(options={"window": 3}),
    "bidirectional_window": Case(options={"causal": False, "window": 3}),
    "full_attention_tail": Case(options={"window": 3, "full_attention_tail": 4}),
    "contextual": Case(contextual=3),
    "targets": Case(targets=4),
    "all_masks": Case(contextual=2, targets=3, options={"window": 4, "full_attention_tail": 3}),
    "position_bias": Case(has_position=True),
    "time_bias": Case(has_time=True),
    "both_biases": Case(has_position=True, has_time=True, contextual=2, targets=2),
    "cached_history": Case(query_lengths=(2, 0, 1, 17, 3), has_position=True, has_time=True, targets=1),
    "wide_values": Case(dim=8, value_dim=24),
    "odd_columns": Case(dim=7, value_dim=5, num_heads=3),
    "by_length": Case(options={"scale": "length", "alpha": 0.25}),
    "by_number": Case(options={"scale": 0.5}),
    "no_sequences": Case(key_lengths=()),
    "only_empty_sequences": Case(key_lengths=(0, 0)),
}

#: Cases in which the gradient of a bias weight is a sum over many pairs, or all of them.
BIAS_CASES = {name: CASES[name] for name in ("position_bias", "time_bias", "both_biases", "cached_history")} | {
    "equal_times": Case(has_time=True, key_lengths=(90, 17, 140), longest_step=1),
    "crowded_times": Case(has_time=True, has_position=True, key_lengths=(200, 70), longest_step=2),
}


def offsets_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def batch_of(case: Case, dtype: torch.dtype, *, seed: int = 0) -> tuple[list[Tensor], dict[str, Any]]:
    """Returns the positional and named arguments of ``hstu_attention``."""
    draw = torch.Generator().manual_seed(seed)
    queries = case.query_lengths or case.key_lengths
    offsets, key_offsets = offsets_of(queries), offsets_of(case.key_lengths)
    max_length = max(case.key_lengths, default=0)

    def heads(tokens: Tensor, columns: int) -> Tensor:
        values = torch.randn(int(tokens[-1]), case.num_heads, columns, generator=draw, dtype=torch.float64)
        return values.to(dtype)

    named: dict[str, Any] = {"max_length": max_length, "key_offsets": key_offsets, **case.options}
    lengths = torch.tensor(case.key_lengths)
    weights = torch.float64 if dtype == torch.float64 else torch.float32
    if case.contextual:
        named["num_contextual"] = lengths.clamp(max=case.contextual).int()
    if case.targets:
        rest = lengths - named.get("num_contextual", torch.zeros_like(lengths))
        named["num_targets"] = rest.clamp(max=case.targets).int()
    if case.has_position:
        # 2 M - 1 weights with M = max_length + 2: more than needed, which is allowed.
        named["position_weights"] = torch.randn(2 * max_length + 3, generator=draw, dtype=weights)
    if case.has_time:
        steps = torch.randint(0, case.longest_step, (int(key_offsets[-1]),), generator=draw)
        times = steps.cumsum(0) + (1 << 40)  # Float32 cannot hold them: differences must be taken in int64.
        is_query = torch.cat(
            [torch.arange(n) >= n - q for n, q in zip(case.key_lengths, queries, strict=True)]
            or [torch.empty(0).bool()]
        )
        named |= {
            "time_weights": torch.randn(8, generator=draw, dtype=weights),
            "time_bounds": torch.tensor([1.0, 2, 3, 10, 31.5, 100, 1000]),
            "query_times": times[is_query] + 7,
            "key_times": times,
        }
    inputs = [heads(offsets, case.dim), heads(key_offsets, case.dim), heads(key_offsets, case.value_dim)]
    return [*inputs, offsets], named
