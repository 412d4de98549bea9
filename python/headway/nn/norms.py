"""LayerNorm and RMSNorm of the last dimension with their gradients.

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


class Normalized(NamedTuple):
    """The outcome (T, C), and (T, 1) statistics for its gradients: the mean (LayerNorm alone) and 1 / deviation."""

    out: Tensor
    mean: Tensor | None
    inverse: Tensor


class NormGradients(NamedTuple):
    """Of the input, and of the weights where there are any."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


def normalize(kind: Norm, x: Tensor, weights: NormWeights, eps: float) -> Normalized:
    """Of the type of ``x``; computed in that of the weights, if they have another one."""
    wide = _widened(x, weights)
    if kind == "layer":
        out, mean, inverse = torch.native_layer_norm(wide, wide.shape[1:], weights.weight, weights.bias, eps)
        return Normalized(out.to(x.dtype), mean, inverse)
    squares = wide.to(torch.promote_types(x.dtype, torch.float32)).square()
    inverse = torch.rsqrt(squares.mean(-1, keepdim=True) + eps)
    normed = wide * inverse.to(wide.dtype)
    return Normalized((normed if weights.weight is None else normed * weights.weight).to(x.dtype), None, inverse)


def normalize_backward(
    kind: Norm, grad: Tensor, x: Tensor, weights: NormWeights, statistics: Normalized
) -> NormGradients:
    """Gradients of ``normalize()``, which gave ``statistics``, for that of its output, (T, C)."""
    wide, grad_wide = _widened(x, weights), _widened(grad, weights)
    if kind == "rms":
        return _rms_backward(grad_wide, wide, weights, statistics.inverse, x.dtype)
    has_weight, has_bias = weights.weight is not None, weights.bias is not None
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad_wide,
        wide,
        wide.shape[1:],
        statistics.mean,
        statistics.inverse,
        weights.weight,
        weights.bias,
        [True, has_weight, has_bias],
    )
    return NormGradients(grad_x.to(x.dtype), grad_weight if has_weight else None, grad_bias if has_bias else None)


def _rms_backward(grad: Tensor, x: Tensor, weights: NormWeights, inverse: Tensor, dtype: torch.dtype) -> NormGradients:
    normed = x.to(inverse.dtype) * inverse
    grad_weight = None if weights.weight is None else (grad * normed).sum(0).to(weights.weight.dtype)
    grad_normed = grad.to(inverse.dtype) if weights.weight is None else grad.to(inverse.dtype) * weights.weight
    grad_x = inverse * (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True))
    return NormGradients(grad_x.to(dtype), grad_weight, None)


def _widened(x: Tensor, weights: NormWeights) -> Tensor:
    return x if weights.weight is None else x.to(weights.weight.dtype)
