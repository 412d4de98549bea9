"""How the gate u and the attention output become the input of the output projection, with gradients.

Shapes: T tokens, V columns of all heads, G columns of the result, V or 3 V.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.nn.config import HSTUConfig
from headway.nn.norms import NormWeights, normalize, normalize_backward


class GateGradients(NamedTuple):
    """Of attention output and gate, (T, V) each, and of the norm's weights where there are any."""

    attended: Tensor
    gate: Tensor
    weight: Tensor | None
    bias: Tensor | None


def gate_forward(config: HSTUConfig, attended: Tensor, gate: Tensor, weights: NormWeights) -> Tensor:
    """(T, G) by ``config.gate``; ``attended`` and ``gate`` are (T, V)."""
    if config.gate == "gate_then_norm":
        return normalize(config.norm, attended * gate, weights, config.norm_eps)
    normed = normalize(config.norm, attended, weights, config.norm_eps)
    if config.gate == "norm_then_gate":
        return normed * gate
    return torch.cat([gate, attended if config.gate == "concat" else normed, normed * gate], dim=1)


def gate_backward(
    config: HSTUConfig, grad: Tensor, attended: Tensor, gate: Tensor, weights: NormWeights
) -> GateGradients:
    """Gradients of ``gate_forward()`` for that of its output, (T, G)."""
    if config.gate == "gate_then_norm":
        product = normalize_backward(config.norm, grad, attended * gate, weights, config.norm_eps)
        return GateGradients(product.x * gate, product.x * attended, product.weight, product.bias)
    normed = normalize(config.norm, attended, weights, config.norm_eps)
    if config.gate == "norm_then_gate":
        through = normalize_backward(config.norm, grad * gate, attended, weights, config.norm_eps)
        return GateGradients(through.x, grad * normed, through.weight, through.bias)
    of_gate, of_middle, of_product = grad.tensor_split(3, dim=1)
    grad_gate, grad_normed = of_gate + of_product * normed, of_product * gate
    if config.gate == "concat_norm":
        through = normalize_backward(config.norm, grad_normed + of_middle, attended, weights, config.norm_eps)
        return GateGradients(through.x, grad_gate, through.weight, through.bias)
    through = normalize_backward(config.norm, grad_normed, attended, weights, config.norm_eps)
    return GateGradients(through.x + of_middle, grad_gate, through.weight, through.bias)
