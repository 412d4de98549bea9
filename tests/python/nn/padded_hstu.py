# SPDX-License-Identifier: Apache-2.0
"""HSTU over padded batches, written from the equations of Zhai et al. 2024: the reference of the jagged layer.

``times`` are those of tokens as keys, ``query_times`` those at which they ask as queries.
Shapes: B sequences, N tokens of each, padded, E columns, H heads, D columns of queries and keys, V of values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from headway.nn import HSTUConfig
from torch import Tensor


def padded_layer(
    config: HSTUConfig,
    weights: Mapping[str, Tensor],
    x_BNE: Tensor,
    lengths: list[int],
    times_BN: Tensor,
    query_times_BN: Tensor,
) -> Tensor:
    """Returns the causal layer's output (B, N, E). Rows behind the end of a sequence have no meaning."""
    num_tokens = x_BNE.shape[1]
    heads, value = config.num_heads, config.num_heads * config.v_dim
    key = heads * config.qk_dim
    normed = padded_norm(config, x_BNE, weights.get("input_norm_weight"), weights.get("input_norm_bias"))
    product = normed @ weights["uvqk_weight"] + weights.get("uvqk_bias", 0)
    silu = product * torch.sigmoid(product)
    u, rest = silu[..., :value], (silu if config.activated == "all" else product)[..., value:]
    v = rest[..., :value].unflatten(-1, (heads, -1)).transpose(1, 2)
    q = rest[..., value : value + key].unflatten(-1, (heads, -1)).transpose(1, 2)
    k = rest[..., value + key :].unflatten(-1, (heads, -1)).transpose(1, 2)

    scores_BHNN = q @ k.mT + padded_bias(config, weights, times_BN, query_times_BN)[:, None]
    scores_BHNN = config.alpha * scores_BHNN
    mask_NN = torch.ones(num_tokens, num_tokens).tril()
    weights_BHNN = scores_BHNN * torch.sigmoid(scores_BHNN) * scales(config, lengths)[:, None, None, None] * mask_NN
    a = (weights_BHNN @ v).transpose(1, 2).flatten(2)

    norm_weights = (weights.get("output_norm_weight"), weights.get("output_norm_bias"))
    if config.gate == "gate_then_norm":
        y = padded_norm(config, a * u, *norm_weights)
    else:
        n = padded_norm(config, a, *norm_weights)
        y = {
            "norm_then_gate": n * u,
            "concat": torch.cat([u, a, n * u], dim=-1),
            "concat_norm": torch.cat([u, n, n * u], dim=-1),
        }[config.gate]
    return x_BNE + y @ weights["output_weight"] + weights.get("output_bias", 0)


def scales(config: HSTUConfig, lengths: list[int]) -> Tensor:
    """Returns the scale of each sequence: (B,)."""
    if not isinstance(config.scale, str):
        return torch.full((len(lengths),), config.scale, dtype=torch.float64)
    divisors = {
        "max_length": [config.max_length] * len(lengths),
        "batch_length": [max(lengths)] * len(lengths),
        "length": [max(length, 1) for length in lengths],
    }[config.scale]
    return 1 / torch.tensor(divisors, dtype=torch.float64)


def padded_norm(config: HSTUConfig, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """LayerNorm or RMSNorm over the last dimension."""
    if config.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.norm_eps)
    return x * (1 if weight is None else weight) + (0 if bias is None else bias)


def padded_bias(config: HSTUConfig, weights: Mapping[str, Tensor], times_BN: Tensor, query_times_BN: Tensor) -> Tensor:
    """Computes the relative bias (B, N, N) token by token."""
    bias = torch.zeros(*times_BN.shape, times_BN.shape[1], dtype=torch.float64)
    for b, i, j in torch.cartesian_prod(*(torch.arange(size) for size in bias.shape)).tolist():
        if config.position_bias:
            bias[b, i, j] += weights["bias.position_weights"][config.max_length - 1 + j - i]
        if config.num_time_buckets:
            apart = max(abs(int(query_times_BN[b, i]) - int(times_BN[b, j])), 1)
            bucket = min(math.floor(math.log(apart) / config.time_bucket_width), config.num_time_buckets)
            bias[b, i, j] += weights["bias.time_weights"][bucket]
    return bias
