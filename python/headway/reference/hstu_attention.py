"""HSTU attention (Zhai et al. 2024, equation 3) in plain PyTorch, a sequence at a time.

Shapes: B sequences, T tokens (TQ of queries, TK of keys) of all sequences one after the other, H heads, D columns of
queries and keys, V columns of values, N tokens of one sequence.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

Scale = float | Literal["max_length", "length"]


def hstu_mask(
    num_queries: int,
    num_keys: int,
    *,
    causal: bool = True,
    num_contextual: int = 0,
    num_targets: int = 0,
    window: int = 0,
    full_attention_tail: int = 0,
) -> torch.Tensor:
    """Which keys each query of one sequence sees.

    Tokens are the keys in order: contextual ones, the history, targets; queries are the last of them. Contextual tokens
    share the first position, targets the last, those of the history lie between one by one. A token sees itself, those
    before its position (not ``causal``: those of another position) that are at most ``window`` positions away, if that
    is not 0; the last ``full_attention_tail`` positions of the history, and with them targets, see past the window.
    Contextual tokens see each other and the whole history.

    Returns:
        (num_queries, num_keys) bool.
    """
    shared = max(num_contextual - 1, 0)
    target_position = num_keys - num_targets - shared
    token_N = torch.arange(num_keys)
    position_N = (token_N - shared).clamp(min=0, max=target_position)
    distance_NN = position_N[:, None] - position_N[None, :]
    if not causal:
        distance_NN = distance_NN.abs()
    sees_NN = distance_NN > 0
    if window > 0:
        is_near_NN = distance_NN <= window
        if full_attention_tail > 0:
            is_near_NN |= (position_N >= target_position - full_attention_tail)[:, None]
        sees_NN &= is_near_NN
    sees_NN |= (token_N < num_contextual)[:, None] & (token_N < num_keys - num_targets)[None, :]
    sees_NN |= torch.eye(num_keys, dtype=torch.bool)
    return sees_NN[num_keys - num_queries :]


def hstu_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    *,
    max_length: int,
    key_offsets: torch.Tensor | None = None,
    alpha: float = 1.0,
    scale: Scale = "max_length",
    causal: bool = True,
    num_contextual: torch.Tensor | None = None,
    num_targets: torch.Tensor | None = None,
    window: int = 0,
    full_attention_tail: int = 0,
    position_weights: torch.Tensor | None = None,
    time_weights: torch.Tensor | None = None,
    time_bounds: torch.Tensor | None = None,
    query_times: torch.Tensor | None = None,
    key_times: torch.Tensor | None = None,
) -> torch.Tensor:
    """What :func:`headway.ops.hstu_attention` computes; arguments, shapes and errors are described there."""
    key_offsets = offsets if key_offsets is None else key_offsets
    outputs = [v[:0]]
    for b in range(offsets.numel() - 1):
        queries = slice(int(offsets[b]), int(offsets[b + 1]))
        keys = slice(int(key_offsets[b]), int(key_offsets[b + 1]))
        num_queries, num_keys = queries.stop - queries.start, keys.stop - keys.start
        if num_queries == 0:
            continue
        scores_HQK = torch.einsum("qhd,khd->hqk", q[queries], k[keys])
        if position_weights is not None:
            scores_HQK = scores_HQK + _position_bias(position_weights, num_queries, num_keys).to(q.dtype)
        if time_weights is not None:
            assert time_bounds is not None and query_times is not None and key_times is not None
            scores_HQK = scores_HQK + _time_bias(time_weights, time_bounds, query_times[queries], key_times[keys]).to(
                q.dtype
            )
        mask_QK = hstu_mask(
            num_queries,
            num_keys,
            causal=causal,
            num_contextual=0 if num_contextual is None else int(num_contextual[b]),
            num_targets=0 if num_targets is None else int(num_targets[b]),
            window=window,
            full_attention_tail=full_attention_tail,
        ).to(q.device)
        factor = 1 / max_length if scale == "max_length" else 1 / num_keys if scale == "length" else scale
        weights_HQK = functional.silu(alpha * scores_HQK) * factor * mask_QK
        outputs.append(torch.einsum("hqk,khv->qhv", weights_HQK, v[keys]))
    return torch.cat(outputs)


def _position_bias(weights: torch.Tensor, num_queries: int, num_keys: int) -> torch.Tensor:
    """(num_queries, num_keys): by the distance of tokens."""
    middle = (weights.numel() - 1) // 2
    key_K = torch.arange(num_keys, device=weights.device)
    query_Q = key_K[num_keys - num_queries :]
    return weights[middle + key_K[None, :] - query_Q[:, None]]


def _time_bias(
    weights: torch.Tensor, bounds: torch.Tensor, query_times: torch.Tensor, key_times: torch.Tensor
) -> torch.Tensor:
    """(queries, keys): by how many bounds their times are apart."""
    apart_QK = (query_times[:, None] - key_times[None, :]).abs().to(torch.float32)
    return weights[torch.bucketize(apart_QK, bounds, right=True)]
