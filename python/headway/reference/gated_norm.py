# SPDX-License-Identifier: Apache-2.0
"""Gated LayerNorm or RMSNorm in plain PyTorch: the oracle of the kernels.

Idea: with s = silu(gate) and norm(z) = (z - mean(z)) / sqrt(var(z) + eps) * weight + bias per row ("layer"), or
norm(z) = z / sqrt(mean(z^2) + eps) * weight + bias ("rms"), the forms are

    norm_then_gate   norm(x) * s
    gate_then_norm   norm(x * s)
    concat           [s, x, norm(x) * s]          3 C columns
    concat_norm      [s, norm(x), norm(x) * s]    3 C columns

Example: x = [1, 3], "layer", eps = 0, no gate: mean 2, variance 1, result [-1, 1]. "rms": mean square 5, result
    [1, 3] / sqrt(5).

Invariants: the variance is the biased one (division by C). Arithmetic is in float32 (float64 for float64), rounded once
    to the type of x.
Complexity: O(T * C).

Shapes: T rows, C columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Norm = Literal["layer", "rms"]
GateForm = Literal["norm_then_gate", "gate_then_norm", "concat", "concat_norm"]


def gated_norm(
    x: Tensor,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Norm = "layer",
    form: GateForm = "norm_then_gate",
    eps: float = 1e-6,
) -> Tensor:
    """Oracle of :func:`headway.ops.gated_norm`, with the same arguments and result."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x_TC = x.to(wide)
    if gate is None:
        return _norm(x_TC, weight, bias, norm, eps).to(x.dtype)
    s_TC = functional.silu(gate.to(wide))
    if form == "gate_then_norm":
        return _norm(x_TC * s_TC, weight, bias, norm, eps).to(x.dtype)
    normed_TC = _norm(x_TC, weight, bias, norm, eps)
    if form == "norm_then_gate":
        return (normed_TC * s_TC).to(x.dtype)
    middle_TC = x_TC if form == "concat" else normed_TC
    return torch.cat([s_TC, middle_TC, normed_TC * s_TC], dim=1).to(x.dtype)


def _norm(z_TC: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, eps: float) -> Tensor:
    if norm == "layer":
        z_TC = z_TC - z_TC.mean(dim=1, keepdim=True)
    normed_TC = z_TC * torch.rsqrt(z_TC.square().mean(dim=1, keepdim=True) + eps)
    if weight is not None:
        normed_TC = normed_TC * weight.to(z_TC.dtype)
    return normed_TC if bias is None else normed_TC + bias.to(z_TC.dtype)
