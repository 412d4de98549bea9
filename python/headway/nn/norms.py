"""LayerNorm and RMSNorm of the last dimension with their gradients; both passes compute the statistics anew.

Shapes: T tokens, C columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.nn.config import Norm


class NormWeights(NamedTuple):
    """Learned factor and summand of columns, (C,) each; None where there is none."""

    weight: Tensor | None
    bias: Tensor | None


class NormGradients(NamedTuple):
    """Of the input, and of the weights where there are any."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


def normalize(kind: Norm, x: Tensor, weights: NormWeights, eps: float) -> Tensor:
    """(T, C) of the type of ``x``; computed in that of the weights, if they have another one."""
    wide = _widened(x, weights)
    if kind == "layer":
        return torch.native_layer_norm(wide, wide.shape[1:], weights.weight, weights.bias, eps)[0].to(x.dtype)
    normed = wide * _inverse_rms(wide, eps).to(wide.dtype)
    return (normed if weights.weight is None else normed * weights.weight).to(x.dtype)


def normalize_backward(kind: Norm, grad: Tensor, x: Tensor, weights: NormWeights, eps: float) -> NormGradients:
    """Gradients of ``normalize()`` for that of its output, (T, C)."""
    wide, grad_wide = _widened(x, weights), _widened(grad, weights)
    if kind == "rms":
        return _rms_backward(grad_wide, wide, weights, eps, x.dtype)
    _, mean, rstd = torch.native_layer_norm(wide, wide.shape[1:], weights.weight, weights.bias, eps)
    has_weight, has_bias = weights.weight is not None, weights.bias is not None
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad_wide, wide, wide.shape[1:], mean, rstd, weights.weight, weights.bias, [True, has_weight, has_bias]
    )
    return NormGradients(grad_x.to(x.dtype), grad_weight if has_weight else None, grad_bias if has_bias else None)


def _rms_backward(grad: Tensor, x: Tensor, weights: NormWeights, eps: float, dtype: torch.dtype) -> NormGradients:
    factor = _inverse_rms(x, eps)
    normed = x.to(factor.dtype) * factor
    grad_weight = None if weights.weight is None else (grad * normed).sum(0).to(weights.weight.dtype)
    grad_normed = grad.to(factor.dtype) if weights.weight is None else grad.to(factor.dtype) * weights.weight
    grad_x = factor * (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True))
    return NormGradients(grad_x.to(dtype), grad_weight, None)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """(T, 1), at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _widened(x: Tensor, weights: NormWeights) -> Tensor:
    return x if weights.weight is None else x.to(weights.weight.dtype)
