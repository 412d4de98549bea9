# SPDX-License-Identifier: Apache-2.0
"""HSTU attention over jagged sequences, as an operator.

Shapes: B sequences, TQ queries and TK keys of all sequences one after the other, H heads, D columns of queries and
keys, V columns of values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.ops.library import LIBRARY
from headway.reference.hstu_attention import Scale

#: Arguments of the operator, in order. ``torch.ops`` requires all of them but ``query_runs``.
_ARGUMENTS = ("q", "k", "v", "offsets", "key_offsets", "max_length", "position_weights", "time_weights", "time_bounds",
              "query_times", "key_times", "num_contextual", "num_targets", "alpha", "scale", "length_scaling", "causal",
              "window", "full_attention_tail", "deterministic", "query_runs")  # fmt: skip


def hstu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    *,
    max_length: int,
    key_offsets: Tensor | None = None,
    alpha: float = 1.0,
    scale: Scale = "max_length",
    causal: bool = True,
    num_contextual: Tensor | None = None,
    num_targets: Tensor | None = None,
    window: int = 0,
    full_attention_tail: int = 0,
    position_weights: Tensor | None = None,
    time_weights: Tensor | None = None,
    time_bounds: Tensor | None = None,
    query_times: Tensor | None = None,
    key_times: Tensor | None = None,
    deterministic: bool = False,
    query_runs: Tensor | None = None,
) -> Tensor:
    """Attention with SiLU weights instead of softmax (Zhai et al. 2024, equation 3).

    For each query i and head::

        out_i = sum over keys j visible to i of silu(alpha * (q_i . k_j + bias_ij)) * scale * v_j

    :func:`headway.reference.hstu_mask` defines the visible keys. Products are accumulated in float32 (float64 for
    float64). Gradients have no gradients, and there is no forward-mode derivative.

    Speed: Hopper GPUs are fast with bfloat16 and float16 and D = V of 32, 64, 128 or 256. Other widths up to 256 are
    copied to the next of these, padded with zeros. Several times slower are float32, gradients of more than 128 columns
    with a bias, and gradients of bias weights with ``deterministic``. A warning then states the reason, once.

    Accuracy: the error of outputs and of the gradients of q, k and v is at most about twice that of the reference in
    the same dtype. The gradient of a bias weight is a sum over all its pairs, most of which may cancel, so the error of
    the reference is no measure. Its error is at most the sum over these pairs of
    ``e_ij * alpha * scale * abs(grad_out_i . v_j)``, however small the sum itself is. Here ``e_ij`` is 4 eps of the
    dtype of ``q``. On a GPU, in bfloat16 and float16, ``2**-12 * (1 + abs(s_ij))`` is added, where ``s_ij`` is the
    argument of SiLU: the tanh instruction has an error of 2**-11. In float32 and float64 the products themselves are
    rounded: there the bound has ``abs(grad_out_i) . abs(v_j)``, and ``e_ij`` is
    ``4 eps * (1 + alpha * abs(q_i) . abs(k_j))``.

    Rows after the last offset (batches padded to a fixed size) belong to no sequence. Their contents are never read,
    and their outputs and gradients are zero.

    Args:
        q: (TQ, H, D) float64, float32, bfloat16 or float16; tokens and heads may have any strides.
        k: (TK, H, D) of the same dtype.
        v: (TK, H, V) of the same dtype.
        offsets: (B + 1,) int64: sequence b has the queries from ``offsets[b]`` to before ``offsets[b + 1]``.
        max_length: upper bound of tokens per sequence.
        key_offsets: (B + 1,) int64, if sequences have more keys than queries (cached history): the queries are then
            the last tokens. None: ``offsets``.
        alpha: factor of products and bias.
        scale: factor of weights: a number, "max_length" (1 / ``max_length``), or "length" (1 / keys of the sequence).
        causal: a token attends to no later token.
        num_contextual: (B,) int32, number of leading tokens that attend to each other and the whole history; with
            ``causal`` only.
        num_targets: (B,) int32, number of trailing tokens that attend only to the history and themselves; with
            ``causal`` only.
        window: number of earlier positions that a token attends to; 0: all.
        full_attention_tail: number of last positions of the history that the window does not limit.
        position_weights: (2 M - 1,) float32 (float64 for float64) with M >= ``max_length``: ``[M - 1 + j - i]`` is
            the bias of query token i and key j, for all heads.
        time_weights: (N + 1,) like ``position_weights``: the bias by bucket. The bucket is the number of
            ``time_bounds`` that are at most abs(query time - key time), as float32.
        time_bounds: (N,) float32, ascending.
        query_times: (TQ,) int64.
        key_times: (TK,) int64.
        deterministic: gradients have the same bits in every call; on the CPU they always do.
        query_runs: (B, 3, 2) int32, on the CPU only: first token and number of tokens of up to three runs of each
            sequence, ascending, whose tokens are its queries; 0 tokens: no run. ``key_offsets`` then have rows for all
            tokens of a sequence. Rows that no query sees may hold any finite numbers.

    Returns:
        (TQ, H, V) of the dtype of ``q``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other. On the CPU also if offsets or counts are wrong:
            offsets that do not begin at 0, descend or exceed the rows; sequences longer than ``max_length`` or with
            fewer keys than queries; negative counts; more contextual tokens and targets than keys; descending
            ``time_bounds``. On a GPU these are a device assertion, after a line on stdout that names the sequence and
            its values; nothing is read or written out of bounds.
    """
    is_named = isinstance(scale, str)
    if is_named and scale not in ("max_length", "length"):
        raise ValueError(f"scale must be a number, max_length or length, not {scale!r}")
    out: Tensor = torch.ops.headway.hstu_attention(
        q,
        k,
        v,
        offsets,
        offsets if key_offsets is None else key_offsets,
        max_length,
        position_weights,
        time_weights,
        time_bounds,
        query_times,
        key_times,
        num_contextual,
        num_targets,
        alpha,
        1.0 if is_named else scale,
        scale if is_named else "none",
        causal,
        window,
        full_attention_tail,
        deterministic,
        query_runs,
    )
    return out


@torch.library.register_fake("headway::hstu_attention", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


@torch.library.register_fake("headway::hstu_attention_backward", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake_backward(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    named = {"query_runs": None} | dict(zip(_ARGUMENTS, arguments, strict=False))
    q, *keys = named["q"], named["k"], named["v"]
    # Gradients of keys and values are partial with runs, and have the type of sums.
    wide = torch.promote_types(q.dtype, torch.float32)
    of_keys = [each.new_empty(each.shape, dtype=each.dtype if named["query_runs"] is None else wide) for each in keys]
    weights = (named["position_weights"], named["time_weights"])
    return (
        q.new_empty(q.shape),
        *of_keys,
        *(grad_out.new_empty(0) if each is None else torch.empty_like(each) for each in weights),
    )
