"""How the gate u and the attention output become the input of the output projection, with gradients.

Shapes: T tokens, V columns of all heads, G columns of the result, V or 3 V.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headway.nn.config import HSTUConfig
from headway.nn.norms import Normalized, NormWeights, normalize, normalize_backward


class Gated(NamedTuple):
    """The outcome (T, G), and the norm of it all for its gradients."""

    out: Tensor
    normalized: Normalized


class GateGradients(NamedTuple):
    """Of attention output and gate, (T, V) each, and of the norm's weights where there are any."""

    attended: Tensor
    gate: Tensor
    weight: Tensor | None
    bias: Tensor | None


def gate_forward(config: HSTUConfig, attended: Tensor, gate: Tensor, weights: NormWeights) -> Gated:
    """By ``config.gate``; ``attended`` and ``gate`` are (T, V)."""
    is_gated_before = config.gate == "gate_then_norm"
    normalized = normalize(config.norm, attended * gate if is_gated_before else attended, weights, config.norm_eps)
    normed = normalized.out
    if is_gated_before:
        return Gated(normed, normalized)
    if config.gate == "norm_then_gate":
        return Gated(normed * gate, normalized)
    middle = attended if config.gate == "concat" else normed
    return Gated(torch.cat([gate, middle, normed * gate], dim=1), normalized)


def gate_backward(
    config: HSTUConfig, grad: Tensor, attended: Tensor, gate: Tensor, weights: NormWeights, normalized: Normalized
) -> GateGradients:
    """Gradients of ``gate_forward()``, which gave ``normalized``, for that of its output, (T, G)."""
    if config.gate == "gate_then_norm":
        product = normalize_backward(config.norm, grad, attended * gate, weights, normalized)
        return GateGradients(product.x * gate, product.x * attended, product.weight, product.bias)
    if config.gate == "norm_then_gate":
        through = normalize_backward(config.norm, grad * gate, attended, weights, normalized)
        return GateGradients(through.x, grad * normalized.out, through.weight, through.bias)
    of_gate, of_middle, of_product = grad.tensor_split(3, dim=1)
    grad_gate, grad_normed = torch.addcmul(of_gate, of_product, normalized.out), of_product * gate
    if config.gate == "concat_norm":
        through = normalize_backward(config.norm, grad_normed + of_middle, attended, weights, normalized)
        return GateGradients(through.x, grad_gate, through.weight, through.bias)
    through = normalize_backward(config.norm, grad_normed, attended, weights, normalized)
    return GateGradients(through.x + of_middle, grad_gate, through.weight, through.bias)
