# SPDX-License-Identifier: Apache-2.0
"""HSTU attention in plain PyTorch, one sequence at a time: the oracle of the kernels.

Idea: attention whose weights are SiLU instead of softmax, so rows need no normalisation. For query i of a head:

    out_i = sum over keys j with mask_ij of silu(alpha * (q_i . k_j + bias_ij)) * scale * v_j

The bias is the sum of position_weights[middle + j - i], indexed by the distance of the tokens, and time_weights[b],
where b is the number of time bounds that the time difference |t_i - t_j| reaches.

Example (hstu_mask): 6 tokens, 2 contextual, 2 targets, causal. Row: query, column: key.

    contextual  1 1 1 1 . .      contextual tokens see each other and the whole history
                1 1 1 1 . .
    history     1 1 1 . . .      history tokens see contextual tokens and earlier history
                1 1 1 1 . .
    target      1 1 1 1 1 .      targets see all of these and themselves, but not each other
                1 1 1 1 . 1

Invariants: queries are the last tokens of their keys, so query i is token (num_keys - num_queries + i), unless there
    are runs of queries. A sequence without queries has no output rows.
Complexity: O(num_queries * num_keys) time and memory per sequence and head.
Source: Zhai et al., "Actions Speak Louder than Words", 2024, equation 3.

Shapes: B sequences, TQ queries and TK keys of all sequences (concatenated), H heads, D columns of queries and keys,
V columns of values; Q queries, K keys and N tokens of one sequence.
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
    """Attention mask of one sequence.

    The keys are all tokens in order: contextual tokens, history, targets. The queries are the last ``num_queries`` of
    them. Contextual tokens share the first position, targets share the last position, and history tokens lie between,
    one per position. A token sees itself and all tokens at earlier positions (not ``causal``: at other positions).
    ``window``, unless 0, limits this to positions at most ``window`` away. The last ``full_attention_tail`` positions
    of the history, and then also the targets, see past the window. Contextual tokens also see each other and the whole
    history.

    Returns:
        (num_queries, num_keys) bool, True if the query sees the key.
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
    query_runs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Oracle of :func:`headway.ops.hstu_attention`, which documents arguments, shapes and errors.

    Returns:
        (TQ, H, V) in the type of the inputs.
    """
    key_offsets = offsets if key_offsets is None else key_offsets
    outputs = [v[:0]]
    for b in range(offsets.numel() - 1):
        queries = slice(int(offsets[b]), int(offsets[b + 1]))
        keys = slice(int(key_offsets[b]), int(key_offsets[b + 1]))
        num_queries, num_keys = queries.stop - queries.start, keys.stop - keys.start
        if num_queries == 0:
            continue
        token_Q = _tokens_of_queries(num_queries, num_keys, None if query_runs is None else query_runs[b])
        scores_HQK = torch.einsum("qhd,khd->hqk", q[queries], k[keys])
        if position_weights is not None:
            scores_HQK = scores_HQK + _position_bias(position_weights, token_Q, num_keys).to(q.dtype)
        if time_weights is not None:
            assert time_bounds is not None and query_times is not None and key_times is not None
            scores_HQK = scores_HQK + _time_bias(time_weights, time_bounds, query_times[queries], key_times[keys]).to(
                q.dtype
            )
        mask_QK = hstu_mask(
            num_keys,
            num_keys,
            causal=causal,
            num_contextual=0 if num_contextual is None else int(num_contextual[b]),
            num_targets=0 if num_targets is None else int(num_targets[b]),
            window=window,
            full_attention_tail=full_attention_tail,
        )[token_Q].to(q.device)
        factor = 1 / max_length if scale == "max_length" else 1 / num_keys if scale == "length" else scale
        weights_HQK = functional.silu(alpha * scores_HQK) * factor * mask_QK
        outputs.append(torch.einsum("hqk,khv->qhv", weights_HQK, v[keys]))
    # Rows of no sequence: nothing reads them, so they have no gradients either.
    outputs.append(v.new_zeros(q.shape[0] - int(offsets[-1]), *v.shape[1:]))
    return torch.cat(outputs)


def _tokens_of_queries(num_queries: int, num_keys: int, runs: torch.Tensor | None) -> torch.Tensor:
    """(num_queries,) token of each query: those of the runs, (3, 2) of first token and rows, or the last ones."""
    if runs is None:
        return torch.arange(num_keys - num_queries, num_keys)
    tokens = torch.cat([torch.arange(first, first + rows) for first, rows in runs.tolist()])
    if len(tokens) != num_queries:
        raise ValueError(f"the runs have {len(tokens)} queries, and by offsets there are {num_queries}")
    return tokens


def _position_bias(weights: torch.Tensor, token_Q: torch.Tensor, num_keys: int) -> torch.Tensor:
    """(num_queries, num_keys) bias by token distance: ``weights[middle + key - query]``."""
    middle = (weights.numel() - 1) // 2
    key_K = torch.arange(num_keys, device=weights.device)
    return weights[middle + key_K[None, :] - token_Q.to(weights.device)[:, None]]


def _time_bias(
    weights: torch.Tensor, bounds: torch.Tensor, query_times: torch.Tensor, key_times: torch.Tensor
) -> torch.Tensor:
    """(queries, keys) bias by time bucket: the number of ``bounds`` that the absolute time difference reaches."""
    apart_QK = (query_times[:, None] - key_times[None, :]).abs().to(torch.float32)
    return weights[torch.bucketize(apart_QK, bounds, right=True)]
